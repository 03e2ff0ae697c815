"""Answers: whether the final answer of a response is the gold answer.

In come responses and gold answers as untrusted text; out go extracted answers and `Verdict`s.
No text reaches `eval` or `sympify`. No higher folder of the package is imported, and neither torch nor transformers.
Start with `verification.verify`; `extraction` finds the answer in a response (`letters`: of a choice),
`samples` judges all responses to a problem, `judging` does so in worker processes (`worker`).
"""
