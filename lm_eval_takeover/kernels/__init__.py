"""Draws, scores and a decoder's layers on a GPU, as kernels that read logits as they are, float32 or bfloat16, once a pass.

In: logits `[rows, vocab]` on a device, the words of the rows, how each row is drawn. Out: tokens, and what scores and traces
ask of one or two distributions; of a layer, what stands between its products. Nothing waits for the device. Start reading in
`operations`, which callers use; the modules of kernels are imported when a GPU first asks for them. On a CPU `method.sampling`,
`method.reading` and `forward.lean_decoder` compute the same themselves.
"""
