"""One model's forward passes over rows of their own lengths, as fast as this machine runs them.

Knows weights, KV caches and the layouts and graphs that make passes fast; nothing of base, guide or gate.
In come token ids `[rows, new]` and the slots that they continue; out go float32 logits, and drafted tokens with their entropies.
A roll-back is a smaller length; what is computed does not depend on which of the passes ran.
Start reading at `reader.py`, then `forward_pass.py`; `ragged_cache.py` is what both read from and write to.
"""
