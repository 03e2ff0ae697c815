"""One model's forward passes over rows of their own lengths, as fast as this machine runs them.

Knows weights, KV caches, layouts and graphs; nothing of base, guide or gate. Comes in: token ids `[rows, new]` and the slots that
they continue. Goes out: float32 logits, and drafted tokens with their masses. A roll-back is a smaller length. Which pass ran
does not change what is computed. Start reading at `reader.py`, then `forward_pass.py` and `ragged_cache.py`.
"""
