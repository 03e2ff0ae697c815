"""On the path of processes with vLLM. A quarter of the time in which they import it would be looking for garbage."""

import gc

gc.set_threshold(100_000, 50, 100)
