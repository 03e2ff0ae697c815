"""Draws and scores on a GPU, as kernels that read logits as they are, float32 or bfloat16, once a pass.

In: logits `[rows, vocab]` on a device, the words of the rows, how each row is drawn. Out: tokens, and what scores and traces
ask of one or two distributions. Nothing waits for the device. Start reading in `operations`, which callers use; the modules of
kernels are imported when a GPU first asks for them. On a CPU `method.sampling` and `method.reading` compute the same themselves.
"""
