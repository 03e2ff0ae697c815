"""`lm-eval-takeover serve`: an OpenAI-compatible endpoint of a guided pair, by vLLM's own server.

Turns the model arguments of `lm_eval` into options of `vllm serve`, passes on further ones, and becomes that server. What
the server does beside vLLM's own is in `server`. Start reading at `command`.
"""
