"""The paper's method on tensors: scores (equations 1 and 2), the gate (5), policies (who writes a token, 6), and the draw.

Knows no model and no file. Comes in: raw logits, random words, settings. Goes out: scores, takeovers, tokens. `registry` holds
scores and policies by name, a user's own among them; `request` has the nouns of every engine. Start reading at
`gate`, then `policies` and `sampling`.
"""
