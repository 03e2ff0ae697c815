"""Guided takeover inside vLLM: paged caches, continuous batching, several GPUs; no fork and no patched file.

Comes in: a pair, a policy, requests. Goes out: generations, with the tokens of `decoding` in float32. The user's process runs
`launch`, `engine` and `backend`. Workers run `pair_model` (both decoders in one class: *fused*) with the gate in `fused`, or
`drafts` (the base as vLLM's draft model). `slots` does not know vLLM. Start reading at `decoding.emission`, then `fused`.
"""
