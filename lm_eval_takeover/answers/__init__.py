"""Answers: whether the final answer of a response is the gold answer.

In come responses and gold answers as untrusted text; out go extracted answers and outcomes. No text reaches `eval` or `sympify`.
Imports neither torch, transformers nor a higher folder. Start with `verification.verify`, which loads sympy, and the rules of
`reading`, which finds the answer of a response. `samples` judges all responses to a problem, `judging` in worker processes.
"""
