"""Imported last by a process that others are forked off. vLLM collects several times as it starts; it then looks at little."""

import gc

gc.freeze()
