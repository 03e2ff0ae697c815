"""Guided takeover inside vLLM: paged caches, continuous batching, several GPUs, with no fork and no patched file.

Comes in: a pair, a policy, requests; goes out: generations, as from `decoding`, with the same tokens in float32. In vLLM's worker
processes run `plugin`, `pair_model` (both decoders in one model class: *fused*), `blockwise` or `speculator` (the base as draft
model, on vLLM's model runner V1 or V2), and what all share: `slots`, `emission` and `drafts`, which know torch and `method/`
alone. In the process of the user run `launch` and `backend`.
`server` is what `vllm serve` runs besides.
Start reading at `emission`, then `logits_processor`; no module imports vLLM before it is asked to compute.
"""
