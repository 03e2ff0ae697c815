"""`lm-eval-takeover frontier`: accuracy against cost, from folders that `compare` left.

Comes in: comparisons of other methods, seeds or pairs (`folders`). Goes out: a line for each row, areas under each method's curve
and an oracle (`study`, with `curves`, the pure functions), tables and a picture (`output`). Start reading at `command`, then
`study`.
"""
