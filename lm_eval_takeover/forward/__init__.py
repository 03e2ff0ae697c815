"""One model's forward passes over rows of different lengths.

Knows weights, KV caches, layouts and graphs, but not base, guide or gate. In: token ids `[rows, new]` and the slots that they
continue. Out: float32 logits, and drafted tokens with their masses. A roll-back is a smaller length. All passes compute the same.
Start reading at `reader.py`, then `forward_pass.py` and `caches.py`.
"""
