"""Triton interprets the kernels here, in a process of their own: `TRITON_INTERPRET=1` is read as it is imported.

`make test-vllm` runs them; elsewhere they are left out.
"""

import os
from importlib.util import find_spec

NEEDS_TRITON = ("test_compiling.py", "test_draws.py", "test_operations.py", "test_readings.py")
interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
collect_ignore = [] if interpreted else list(NEEDS_TRITON)
