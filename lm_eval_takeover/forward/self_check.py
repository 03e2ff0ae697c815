"""Checks each way of reading a model on this machine against plain passes without a cache.

The texts are two continuations of each of two short prompts. Lockstep's way (a padded batch, two samples each, tokens of another
model, a second batch from the same prefill, a row that leaves) and the way of blocks (rows of their own lengths, a draft rolled
back, a row that moves) must give the plain logits at every token. If not, the next simpler way is used and a line says so. Logits
are compared, not draws: they show a wrong state even if it changes no likely token.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from lm_eval_takeover.errors import ArgumentError, is_out_of_memory
from lm_eval_takeover.forward.caches import Sequences, list_layer_kinds
from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass, prepare_pass
from lm_eval_takeover.forward.reader import Reader, StateReader
from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.method.reading import observe
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw, drawing
from lm_eval_takeover.pair.member import Member

logger = logging.getLogger(__name__)

_PROMPTS = (9, 5)  # tokens; two texts each
_NEW = 3  # tokens of every text behind its prompt
_BEHIND = 4  # tokens behind a text, which cannot change its logits where attention is causal
_NOISE = 8.0  # times what two plain passes differ by is allowed, within these bounds
_LEAST, _LEAST_HALF, _MOST = 1e-3, 0.15, 0.5  # 36 layers in bfloat16 differ by 0.06 as soon as attention adds up otherwise
_ACAUSAL, _ACAUSAL_HALF = 0.01, 0.15  # what later tokens may change
_LONG, _DRAFT = 512, 12  # tokens of a text that has more columns than the others and grows beyond them; of a verified draft
_SAMPLING = Sampling(1.0, 0.95)  # of a drafted token
_HIDDEN = 1e4  # logits beyond it stand for tokens that a model never writes


@dataclass(frozen=True, slots=True)
class Reading:
    """How transformers' own pass reads a model."""

    padded: bool = True  # else texts of different lengths do not share a pass
    cached: bool = True  # else each pass reads the whole text again
    chunked: bool = True  # else, behind a cache, tokens are read one at a time


def check_member(member: Member) -> "SelfCheck":
    """The self-check of this model, made once. Raises ArgumentError for a model that cannot be served at all."""
    if member.self_check is None:
        check_kernels(torch.empty(0, device=member.device).device)
        member.self_check = SelfCheck(member)
    return member.self_check  # type: ignore[no-any-return]


def choose_reading(member: Member) -> Reading:
    """The fastest way of transformers' own pass that gives the logits of plain passes. Raises as `check_member`."""
    return check_member(member).reading


def verify_pass(member: Member, rows: int = 1) -> ForwardPass | StatePass:
    """The pass of blocks of `rows` rows, checked once. Raises ArgumentError if there is none or it gives other logits."""
    reason = check_member(member).blocks_fault
    forward = prepare_pass(member)
    if isinstance(forward, StatePass) and rows > 1:
        reason = reason or "its layers keep a state, which blocks can roll back at batch_size=1 only"
    if reason is not None:
        raise ArgumentError(f"{member.role}='{member.id.id}': {reason}; use block_size=1")
    return forward


class SelfCheck:
    """One model's texts, their plain logits, and its faults."""

    def __init__(self, member: Member) -> None:
        self.name = name = f"{member.role}='{member.id.id}'"
        _ = member.model  # loading sets the device
        self.member, self.texts = member, _write_texts(member)
        try:
            plain = [logits for pair in (self.texts[:2], self.texts[2:]) for logits in self._read_plainly(pair)]
            again = self._read_plainly([self.texts[0] + self.texts[2][:_BEHIND]])[0][: len(self.texts[0])]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ArgumentError(f"{name} cannot be served: a pass over a short text fails with {_describe(error)}") from error
        self.columns = (torch.cat(plain).abs() < _HIDDEN).all(0)
        self.plain = [logits[-_NEW - 1 :].clone() for logits in plain]  # from the end of each prompt on
        noise = self._distances(again, plain[0])
        self.exact = exact = member.model.dtype == torch.float32 and not getattr(member.model, "is_quantized", False)
        # In half precision, an expert that changes at one token is noise.
        if float(noise.max() if exact else noise.median()) > (_ACAUSAL if exact else _ACAUSAL_HALF):
            raise ArgumentError(
                f"{name} cannot be served: its logits depend on later tokens: it is not a causal language model"
            )
        least = _LEAST if exact else _LEAST_HALF
        self.allowed = min(_MOST, max(least, _NOISE * float(noise.max())))

    @torch.inference_mode()
    def _read_plainly(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Logits `[rows, length, vocab]` of texts of one length, without padding and without a cache."""
        ids = torch.tensor(texts, device=self.member.device)
        return self.member.compute_logits(ids, torch.ones_like(ids), keep=ids.shape[1])

    @cached_property
    def reading(self) -> Reading:
        """The first way without a fault."""
        if self.member.cache_argument is None:
            logger.warning("%s: it has no cache that rows can be taken from; each token reads its whole text again", self.name)
            return Reading(padded=False, cached=False, chunked=False)
        chunked = self._fault(self._measure_chunk) is None
        if any(kind.__module__ != DynamicCache.__module__ for kind in list_layer_kinds(self.member.model.config)):
            # The architecture's own layers may fill windows whose places padding would shift.
            padded_fault: str | None = "its cache has layers of its own kind"
        elif self.member.outgrows_rotation:
            padded_fault = "a pass rotates by its longest row"
        else:
            padded_fault = self._fault(lambda: self._measure_lockstep([0, 1, 2, 3]))
        if padded_fault is None:
            return Reading(chunked=chunked)
        fault = self._fault(lambda: self._measure_lockstep([0, 1]))
        if fault is None:
            logger.warning("%s: %s, so prompts of different lengths are read apart", self.name, padded_fault)
            return Reading(padded=False, chunked=chunked)
        logger.warning("%s: %s, so its cache is not used and each token reads its whole text again", self.name, fault)
        return Reading(padded=False, cached=False, chunked=False)

    @cached_property
    def blocks_fault(self) -> str | None:
        """The fault of blocks, in words. Drops the lean pass if transformers' own is right."""
        forward = prepare_pass(self.member)
        if isinstance(forward, StatePass):
            return self._fault(lambda: self._measure_states(forward))
        if forward.graphed:
            fault = self._fault(lambda: self._measure_graphs(forward))
            if fault is not None:
                logger.warning("%s: in CUDA graphs %s; they are not used, and passes take longer", self.name, fault)
                forward.graphed = False
        fault = self._fault(lambda: self._measure_blocks(forward))
        if fault is not None and forward.lean is not None:
            logger.warning("%s: in the lean pass %s; transformers' own is used", self.name, fault)
            forward.lean, forward.graphed = None, False
            fault = self._fault(lambda: self._measure_blocks(forward))
        return fault

    @torch.inference_mode()
    def _fault(self, measure: Callable[[], list[Tensor]]) -> str | None:
        """The fault of this way of reading, in words."""
        if not self.columns.any():  # plain logits are not finite; the first request reports it
            return None
        try:
            steps = measure()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"its first tokens fail with {_describe(error)}"
        # In half precision, an expert that changes at one row is no fault.
        worst = max(float(step.max() if self.exact else step.median()) for step in steps)
        if worst <= self.allowed:
            return None
        return f"its first logits differ from plain passes by {worst:.2g} of their spread, where {self.allowed:.2g} is allowed"

    def _measure_lockstep(self, rows: Sequence[int]) -> list[Tensor]:
        """Distances `[rows]` from the plain logits at each step; `rows` are texts, two of each prompt."""
        prompts = rows[::2]
        prefilled = self._prefill(prompts)
        steps = [self._compare(prefilled.logits, prompts, 0)]
        taken = prefilled.select([place // 2 for place in range(len(rows))])
        for step in (1, 2):
            taken.append(self._tokens(rows, step))
            steps.append(self._compare(taken.logits, rows, step))
        again = prefilled.select(range(len(prompts))[::-1])
        again.append(self._tokens(prompts[::-1], 1))
        steps.append(self._compare(again.logits, prompts[::-1], 1))
        left = [len(rows) - 1, 0]
        rest = taken.select(left)
        rest.append(self._tokens([rows[i] for i in left], 3))
        steps.append(self._compare(rest.logits, [rows[i] for i in left], 3))
        return steps

    def _measure_chunk(self) -> list[Tensor]:
        """Two tokens at once behind a cache."""
        prefilled = self._prefill([0])
        ids = torch.stack([self._tokens([0], 1), self._tokens([0], 2)], 1)
        prefilled.read(ids, torch.ones_like(ids))
        return [self._compare(prefilled.logits, [0], 2)]

    def _measure_blocks(self, forward: ForwardPass) -> list[Tensor]:
        """As `_measure_lockstep`, by passes over several tokens of rows of their own lengths."""
        rows, wrong = [0, 1, 2, 3], self._tokens([2, 3, 0, 1], 1)
        reader = Reader(forward, len(rows), len(self.columns))
        filled = reader.prefill([self._prompt(row) for row in rows[::2]])
        for row in rows:
            reader.copy_row(filled, row // 2, row)
        logits = reader.read(rows, torch.stack([self._tokens(rows, 1), wrong, wrong], 1))
        steps = [self._compare(logits[:, 0], rows, 1)]
        for row in rows:
            reader.lengths[row] += 1  # two drafted tokens are rolled back
        some = [0, 2]
        logits = reader.read(some, torch.stack([self._tokens(some, 2), self._tokens(some, 3)], 1))
        steps += [self._compare(logits[:, place], some, 2 + place) for place in range(2)]
        reader.copy_row(reader, 3, 1)
        logits = reader.read([1], self._tokens([3], 2)[:, None])
        return [*steps, self._compare(logits[:, 0], [3], 2)]

    def _measure_graphs(self, forward: ForwardPass) -> list[Tensor]:
        """Captured passes and replays against eager ones, with other rows and lengths, and groups beside a longer row."""
        longest = min(_LONG - 4, (self.member.max_length or _LONG) - 2 * _DRAFT)
        prompts = [(self.texts[0] * _LONG)[:longest], *self.texts[1:3]]
        rows, steps = [0, 1, 2], list[Tensor]()
        captured, eager = (Reader(forward, 3, len(self.columns), graphed=graphed) for graphed in (True, False))
        filled = eager.prefill(prompts)
        for reader, row in product((captured, eager), rows):
            reader.copy_row(filled, row, row)

        def read(some: list[int], new: int, counts: list[int]) -> None:
            ids = torch.stack([self._tokens(some, place % _NEW + 1) for place in range(new)], 1)
            steps.append(self._distances(*(reader.read_to_last(some, ids, counts).clone() for reader in (captured, eager))))
            for reader, (row, count) in product((captured, eager), zip(some, counts, strict=True)):
                reader.lengths[row] += count

        for _ in range(2):
            read([0], 2, [2])
            read([1, 2], 2, [1, 2])
            read(rows, 1, [1, 1, 1])
        read(rows, min(_DRAFT, captured.longest or 1), [1, 1, 1])  # the first row needs more columns now
        words = torch.tensor([1, 2**40, 2**60], device=self.member.device)
        for _ in range(2):  # captured, and replayed
            with drawing():
                drafted = captured.draft(rows, self._tokens(rows, 1)[:, None], 0, words, _SAMPLING)
                expected = Reader.draw(drafted.logits.clone(), words, _SAMPLING).tokens
            differs = torch.where(drafted.tokens == expected, 0.0, torch.inf)
            steps += [differs, self._distances(drafted.logits.clone(), eager.read(rows, self._tokens(rows, 1)[:, None])[:, 0])]
        return steps

    def _measure_states(self, forward: StatePass) -> list[Tensor]:
        """Both samples of the first prompt: a draft that is rolled back, then tokens one at a time."""
        reader, steps = StateReader(forward, len(self.columns)), []
        filled = reader.prefill([self._prompt(0)])
        wrong = self._tokens([2], 1)
        for row in (0, 1):
            reader.copy_row(filled, 0, 0)
            logits = reader.read([0], torch.stack([self._tokens([row], 1), wrong, wrong], 1))
            steps.append(self._compare(logits[:, 0], [row], 1))
            reader.lengths[0] += 1  # two drafted tokens are rolled back
            for offset in range(2):
                logits = reader.read([0], self._tokens([row], 2 + offset)[:, None], offset)
                steps.append(self._compare(logits[:, 0], [row], 2 + offset))
        return steps

    def _prefill(self, rows: Sequence[int]) -> Sequences:
        return Sequences.prefill(self.member, len(self.columns), [self._prompt(row) for row in rows])

    def _prompt(self, row: int) -> list[int]:
        return self.texts[row][:-_NEW]

    def _tokens(self, rows: Sequence[int], step: int) -> Tensor:
        """The token of each text at this step after its prompt, from 1: `[rows]`."""
        return torch.tensor([self.texts[row][step - 1 - _NEW] for row in rows], device=self.member.device)

    def _compare(self, logits: Tensor, rows: Sequence[int], step: int) -> Tensor:
        """Distances `[rows]` from the plain logits of logits `[rows, vocab]` at this step after the prompts."""
        return self._distances(logits, torch.stack([self.plain[row][step - 1 - _NEW] for row in rows]))

    def _distances(self, logits: Tensor, plain: Tensor) -> Tensor:
        """`|logits - plain|` over the spread of `plain` around its mean, along the last dimension; infinite for NaN."""
        logits, plain = logits[..., self.columns].to(plain.device), plain[..., self.columns]
        spread = (plain - plain.mean(-1, keepdim=True)).norm(dim=-1).clamp(min=1e-9)
        distances: Tensor = (logits - plain).norm(dim=-1) / spread
        return distances.nan_to_num(torch.inf)


def _write_texts(member: Member) -> list[list[int]]:
    """Two texts for each prompt length, which differ after the prompt. Without tokens for images or padding."""
    special = {*member.vocabulary.added, member.config.get_text_config().pad_token_id, *member.eos_ids}
    ids = sorted(i for i in set(member.vocabulary.names) - special if i < member.vocabulary.size) or [0]
    texts = []
    for number, prompt in enumerate(_PROMPTS):
        for sample in range(2):
            places = [place + (sample + 1) * (place >= prompt) for place in range(prompt + _NEW)]
            texts.append([ids[7919 * (17 * number + place + 1) % len(ids)] for place in places])
    return texts


def _describe(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


_ROWS, _VOCAB = 48, 5008  # three tiles of the kernels, the last one cut short
_PADDING = 16  # tokens behind the vocabulary: rows begin at multiples of 16, as in most models, so loads are vectors
_SAMPLINGS = (Sampling(), Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.8, 0.9, 20), Sampling(1.2, min_p=0.1))
_NEAR_TIES = 2  # draws that a rounding may change
_LARGE, _ASKED = 151_936, 8  # a vocabulary of 75 tiles, in bfloat16; words that are drawn from it


@cache
def check_kernels(device: torch.device) -> None:
    """Compare them once for each device; a CPU has none. Raises ArgumentError if Triton is missing."""
    fault = _find_fault(device) if device.type == "cuda" else None
    if fault is not None:
        kernels.REFUSED.add(device)
        logger.warning(
            "%s: the kernels for scores and draws are not used, since %s; the CPU computes them, which takes longer",
            device, fault,
        )  # fmt: skip


@torch.inference_mode()
def _find_fault(device: torch.device) -> str | None:
    generator = torch.Generator().manual_seed(0)
    host, noise = (3 * torch.randn(_ROWS, 3, _VOCAB, generator=generator) for _ in range(2))
    host[::5, :, : _VOCAB // 2] = -torch.inf
    tokens = torch.randint(_VOCAB // 2, _VOCAB, (_ROWS, 3), generator=generator)
    words = torch.randint(-(2**63), 2**63 - 1, (_ROWS,), generator=generator)
    host, donor, tokens = host[:, 1:], (host + noise)[:, 1:], tokens[:, 1:]
    ours = [_copy_padded(part, device) for part in (host, donor, tokens)]
    try:
        for score in scores:
            if score.source.digest is None and not _agree(score(*ours), score(host, donor, tokens)):
                return f"{score.name} differs from torch's"
        observed = observe(ours[2], ours[0], ours[1], base_logits=ours[0])
        if not _agree(observed, observe(tokens, host, donor, base_logits=host)):
            return "numbers of traces differ from torch's"
        for sampling in _SAMPLINGS:
            drawn = draw(ours[0][:, 0], words.to(device), sampling).cpu()
            if int((drawn != draw(host[:, 0], words, sampling)).sum()) > _NEAR_TIES:
                return f"draws at {sampling} differ from numpy's"
        return _find_fault_of_rows(device, generator) or _find_fault_of_attention(device, generator)
    except Exception as error:
        if isinstance(error, ArgumentError) or is_out_of_memory(error):
            raise
        return f"they fail with {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _find_fault_of_rows(device: torch.device, generator: torch.Generator) -> str | None:
    """As vLLM's engine draws: words made on the device, a rule for each of them, and the row that it draws from, -1 for none."""
    keys = torch.randint(-(2**63), 2**63 - 1, (_ASKED, 2), generator=generator)
    positions = 37 * torch.arange(_ASKED)
    streams = zip(keys.numpy().view(np.uint64), positions.tolist(), strict=True)
    words = np.array([np.random.Philox(key=key).random_raw(place + 1)[place] for key, place in streams], np.uint64)
    made = kernels.compute_words(keys.to(device), positions.to(device))
    if made.cpu().numpy().view(np.uint64).tolist() != words.tolist():
        return "random words differ from numpy's"
    logits = (3 * torch.randn(_ASKED, _LARGE, generator=generator)).bfloat16()
    rows = torch.arange(_ASKED - 1, -1, -1)
    rows[2] = -1
    samplings = [_SAMPLINGS[place % len(_SAMPLINGS)] for place in range(_ASKED)]
    rules = kernels.Rules.of([astuple(one) for one in samplings], device)
    drawn = kernels.draw(logits.to(device), made, rules, rows.to(device))[0].cpu()
    expected = torch.zeros_like(drawn)
    for place in (rows >= 0).nonzero()[:, 0].tolist():
        row = logits[rows[place]][None].float()
        expected[place] = draw(row, words[place : place + 1], samplings[place])[0]
    return "draws by a rule for each row differ from numpy's" if int((drawn != expected).sum()) > _NEAR_TIES else None


def _find_fault_of_attention(device: torch.device, generator: torch.Generator) -> str | None:
    """Rows of their own lengths, three new tokens of each, in columns of several parts; two heads share one of the keys."""
    queries = torch.randn(2, 3, 4, 64, generator=generator)
    keys, values = torch.randn(2, 2, 2, 600, 64, generator=generator).unbind()
    hidden = torch.arange(600) > torch.tensor([[40], [500]])[..., None] + torch.arange(3)[:, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None]
    given = [part.to(device) for part in (queries, keys, values, mask)]
    ours = kernels.attend(given[0], given[1], given[2], given[3], 0.1)
    keys, values = (part.repeat_interleave(2, 1) for part in (keys, values))
    theirs = scaled_dot_product_attention(queries.transpose(1, 2), keys, values, attn_mask=mask, scale=0.1)
    return None if _agree(ours, theirs.transpose(1, 2)) else "attention differs from torch's"


def _copy_padded(part: Tensor, device: torch.device) -> Tensor:
    """On the device, as engines have it: a part of wider blocks, and of a padded vocabulary."""
    larger = part.new_zeros([size + (_PADDING if size == _VOCAB else 1) for size in part.shape]).to(device)
    view = larger[tuple(slice(size) for size in part.shape)]
    return view.copy_(part)


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours.cpu(), theirs, rtol=1e-3, atol=1e-3, equal_nan=True)
