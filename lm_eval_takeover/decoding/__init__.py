"""Generation on transformers: four engines that write the same text.

`lockstep` is Algorithm 1; `blockwise` drafts and verifies; `stepwise` serves policies that decide without the donor; `engine`
chooses; `teacher_forcing` reads texts that exist. In: a pair, a policy, requests. Out: generations, as they finish. `pool` has
the slots of blocks and steps, `costs` the lengths of drafts, `gate_step` the decisions of a block and of vLLM's gate. Start
reading at `lockstep`, then `blockwise`.
"""
