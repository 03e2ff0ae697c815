"""The lean pass gives the logits of transformers' own, whatever the lengths of the rows."""

import torch

from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.reader import Reader


@torch.inference_mode()
def test_lean_and_plain_passes_agree_on_ragged_rows(demo_pair):
    """Rows of other lengths, other columns to read, a subset of slots, a roll-back: one cache for each."""
    forward = ForwardPass(demo_pair.base)
    lean = forward.lean
    assert lean is not None
    generator = torch.Generator().manual_seed(0)
    readers = {}
    for kind in (lean, None):
        forward.lean = kind
        reader, found = Reader(forward, 4, 512), []
        generator.manual_seed(0)
        for slots, new, back in ((range(4), 5, 0), (range(4), 1, 1), ((1, 3), 3, 2), ((0, 1, 2), 4, 0), ((2,), 1, 0)):
            ids = torch.randint(0, 512, (len(slots), new), generator=generator)
            found.append(reader.read(slots, ids))
            for place, slot in enumerate(slots):
                reader.lengths[slot] += max(new - back * (place % 2), 0)
        readers[kind is None] = found
    for one, other in zip(readers[False], readers[True], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    forward.lean = lean
