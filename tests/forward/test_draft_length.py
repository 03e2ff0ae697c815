"""A draft is as long as it may be, or as its logits leave room for."""

import psutil
import torch

from lm_eval_takeover.forward.ragged_cache import LONGEST, longest_draft


def test_logits_of_many_rows_or_tokens_shorten_a_draft(monkeypatch):
    cpu, memory = torch.device("cpu"), psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(total=2**30))
    assert longest_draft(1, 512, cpu) == LONGEST
    assert longest_draft(8, 151_936, cpu) == 55  # 2^26 logits, whatever the memory
    assert longest_draft(10**6, 151_936, cpu) == 1
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(total=141 * 10**9))
    assert longest_draft(128, 151_936, cpu) == 28  # not 3: the logits of 128 rows take 1/64 of a large memory
