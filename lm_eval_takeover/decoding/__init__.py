"""Generation on transformers: engines that write the same text. In: a pair, a policy, requests. Out: generations as they finish.

    engine           the backend: checks the weights, chooses batch size and engine, isolates failing requests
    lockstep         Algorithm 1, a token of each row at a time: the reference
    blockwise        drafts and verifies, where the donor's distribution decides; `costs` chooses the lengths of drafts
    stepwise         slots of requests, which both share; and policies that decide without the donor
    rows             a row's text, random numbers and end
    emission         who writes a token, which token, and its record: for blocks, vLLM and its server
    teacher_forcing  reads given texts

Start reading at `lockstep`, then `blockwise`.
"""
