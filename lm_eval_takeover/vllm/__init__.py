"""Guided takeover inside vLLM: paged caches, continuous batching, several GPUs; no fork and no patched file.

Comes in: a pair, a policy, requests. Goes out: generations, with the tokens of `decoding` in float32. The user's process runs
`launch`, `engine`, `backend` and, for several engines, `data_parallel`. Workers run `pair_model` (both decoders in one class:
*fused*) with the gate in `fused_v1` or `fused_v2` (model runner V1 or V2), or `drafts_v2` (the base as vLLM's draft model).
`slots` and `drafts` do not know vLLM. Start reading at `decoding.emission`, then `fused_v1`.
"""
