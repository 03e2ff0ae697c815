"""Who writes token t, and how fast: four ways to the same text.

`lockstep` is Algorithm 1; `blockwise` drafts and verifies; `stepwise` serves policies that decide without the donor; `engine`
chooses; `teacher_forcing` reads texts that exist. Comes in: a pair, a policy, requests. Goes out: generations, as they finish.
`pool` has the slots that blocks and steps share, `schedule` the lengths of drafts, `gate_step` the decisions of a block and of
vLLM's gate. Start reading at `lockstep`, then `blockwise`.
"""
