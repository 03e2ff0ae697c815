"""Two checkpoints that share a vocabulary.

Knows what a checkpoint is: its id, tokenizer, configuration, weights, and one plain forward pass of transformers' own.
In come hub ids or local folders, or the model arguments that name them; out goes a `Pair` of `Member`s, and the policy with its
gate. Raises before any weight is read where the two do not fit together.
Start reading at `pair.py`; `member.py` is one of the two, `policy_choice.py` the way to a policy.
"""
