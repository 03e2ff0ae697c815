"""`lm-eval-takeover serve`: an OpenAI-compatible endpoint of a guided pair, by vLLM's own server.

Knows how model arguments become options of `vllm serve`. Comes in: the model arguments of `lm_eval`, and further options of that
server, which are passed on. Goes out: this process becomes the server. What it does beside vLLM's own is in `vllm/server`. Start
reading at `command`.
"""
