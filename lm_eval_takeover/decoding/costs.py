"""Modelled costs of passes and draws, and how long a draft is worth drafting. No clock is read, so that runs repeat.

Costs follow from the shapes of a model and a table of machines; only ratios matter, and the optimum is flat.
`benchmarks/pass_costs.py` prints the line of this table for the machine that it runs on.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.cache_utils import DynamicLayer

from lm_eval_takeover.forward.caches import LONGEST, list_cache_layers, longest_draft, round_up
from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass
from lm_eval_takeover.forward.lean_decoder import SMALL, computes_bfloat16


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds of one kind of device."""

    launch: float  # seconds a layer, whatever it reads
    weights: float  # bytes a second
    cache: float  # bytes a second, of cached keys and values
    arithmetic: float  # floating point operations a second
    draw: float  # seconds a draw of any number of rows, with the host's books of it
    entries: float  # of the vocabulary, a second
    # Extra time of a pass over several tokens, in shares of reading the large weights (`Projection` lays out small ones for any).
    several: float = 0.0
    row: float = 0.0  # seconds more for each row of a draw
    token: float = 0.0  # seconds a byte of a token's keys and values, for what is no matrix of weights
    block: float = 0.0  # seconds of the host's work on a block that is verified


# CPUs are measured: one core, with and without matrix instructions for the dtype. `token`, `draw` and `block` are from the demo's
# passes and runs in float32.
# The H200 is measured in bfloat16, with shapes of Qwen3-0.6B and 8B (docs/gpu.md). The H100 and the A100 have its launches,
# 7/8 of their published bandwidth and 6/10 of their arithmetic.
MACHINES = {
    "cpu": Machine(7e-5, 17e9, 1e10, 1.7e11, 1.25e-4, 2e8, 0.5, 6e-6, 7e-9, 1.2e-3),
    "cpu with matrices": Machine(7e-5, 17e9, 1e10, 1.4e12, 1.25e-4, 2e8, 0.0, 6e-6, 1.4e-8, 1.2e-3),
    "H200": Machine(6.7e-5, 4.2e12, 2e12, 6e14, 5e-5, 5e11, 0.13, block=2.5e-3),
    "H100": Machine(6.7e-5, 2.9e12, 1.4e12, 6e14, 5e-5, 3.6e11, 0.13, block=2.5e-3),
    "A100": Machine(6.7e-5, 1.75e12, 8e11, 1.9e14, 5e-5, 2.2e11, 0.13, block=2.5e-3),
}
_OTHER_GPU = "H100"
_PADDED = np.array([round_up(new) for new in range(LONGEST + 2)])


def find_machine(device: torch.device, dtype: torch.dtype, name: str = "") -> Machine:
    """The line of the table for a device: a GPU by its name, which torch says if it is not given."""
    if device.type == "cpu":
        return MACHINES["cpu with matrices" if dtype == torch.bfloat16 and computes_bfloat16() else "cpu"]
    name = name or (torch.cuda.get_device_name(device) if device.type == "cuda" else "")
    return next((machine for kind, machine in MACHINES.items() if kind in name), MACHINES[_OTHER_GPU])


@dataclass(frozen=True, slots=True)
class PassCost:
    """Modelled seconds of one model."""

    fixed: float  # of a pass: launches, weights read once
    per_token: float  # arithmetic
    per_column: float = 0.0  # cached keys and values of one token
    draw: float = 0.0  # of one token of each row
    per_draw: float = 0.0  # more for each row
    padded: bool = True  # passes over several tokens have few lengths (`round_up`), those of graphs
    several: float = 0.0  # extra of a pass over several tokens
    block: float = 0.0  # the host's work on a block that this model verifies

    @classmethod
    def of(cls, forward: ForwardPass | StatePass) -> "PassCost":
        """From the shape and dtype of a model, and the kind of its device."""
        machine = find_machine(forward.member.device, forward.model.dtype)
        return cls.of_model(forward.model, machine, padded=forward.graphed)

    @classmethod
    def of_model(cls, model: Any, machine: Machine, *, padded: bool) -> "PassCost":
        """Of transformers' model, which may be without weights, in its dtype."""
        decoder, head = model.get_decoder(), model.get_output_embeddings() or model.get_input_embeddings()
        # A pass reads a row of an embedding for each token, and the head whole.
        rows = {id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding)} - {id(head.weight)}
        weights = {id(weight): weight for weight in (*decoder.parameters(), *head.parameters())}
        sizes = [weight.numel() for key, weight in weights.items() if key not in rows]
        parameters, large = sum(sizes), sum(size for size in sizes if size > SMALL)
        return cls.on(
            replace(machine, several=machine.several * large / parameters),
            parameters=parameters,
            layers=model.config.get_text_config().num_hidden_layers,
            itemsize=model.dtype.itemsize,
            column_bytes=count_column_bytes(model.config, model.dtype.itemsize),
            vocab=len(head.weight),
            padded=padded,
        )

    @classmethod
    def on(
        cls,
        machine: Machine,
        *,
        parameters: int,
        layers: int,
        itemsize: int,
        column_bytes: int,
        vocab: int,
        padded: bool = True,
    ) -> "PassCost":
        """The costs of a model with this many parameters read in a pass."""
        return cls(
            fixed=layers * machine.launch + parameters * itemsize / machine.weights,
            per_token=2 * parameters / machine.arithmetic + column_bytes * machine.token,
            per_column=column_bytes / machine.cache,
            draw=machine.draw,
            per_draw=machine.row + vocab / machine.entries,
            padded=padded,
            several=machine.several * parameters * itemsize / machine.weights,
            block=machine.block,
        )

    def seconds(self, tokens: float, columns: float = 0.0) -> float:
        """Seconds of a pass over these tokens that reads these cached columns, of all rows together."""
        return self.fixed + self.per_token * tokens + self.several * (tokens > 1) + self.per_column * columns

    def draft_seconds(self, rows: float, columns: float = 0.0) -> float:
        """Of one drafted token of each of these rows: a pass and a draw."""
        return self.seconds(rows, columns) + self.draw + self.per_draw * rows


Length = TypeVar("Length", int, "NDArray[Any]")


@dataclass(frozen=True, slots=True)
class StepCosts:
    """A step that drafts `k` tokens of each of `n` rows: `k` passes of the drafter, one of the target. It writes `n E(k)` tokens.

    Numbers of drafted tokens may be arrays. `block` counts for a lone guide, which may as well write alone; in vLLM the host
    works meanwhile.
    """

    drafter: PassCost
    target: PassCost
    fused: PassCost | None  # the drafter in one model with the target; None if the target writes alone without drafts
    ends: float  # `g`, how often a position ends a draft
    columns: int  # cached tokens of a row
    bonus: bool  # whether a draft that stands gives one token more
    rereads: bool = True  # in vLLM the target also reads the token before the draft, and the drafter what the target has read

    def fused_seconds(self, rows: int) -> float:
        """Seconds for a token of each of these rows without drafts."""
        columns = rows * self.columns
        seconds = self.target.draft_seconds(rows, columns)
        return seconds if self.fused is None else seconds + self.fused.draft_seconds(rows, columns)

    def step_seconds(self, drafted: Length, rows: int) -> Length:
        columns = rows * self.columns
        drafting = np.maximum(drafted, 1) * self.drafter.draft_seconds(rows, columns)
        reread: Any = (drafted + 1) * (np.asarray(drafted) > 0) if self.rereads else self.bonus
        again = self.drafter.seconds(rows * (1 + reread)) - self.drafter.seconds(rows)
        read: Any = self.count_read(drafted)
        reading = self.target.seconds(rows * read, columns)
        looking = self.target.draw + self.target.per_draw * rows * self._positions(drafted)
        host = self.target.block * (self.bonus and not self.rereads)
        return drafting + again + reading + looking + host  # type: ignore[no-any-return]

    def token_seconds(self, drafted: Length, rows: int) -> Length:
        """Of a token of each row."""
        return self.step_seconds(drafted, rows) / expect_tokens(self._positions(drafted), self.ends)  # type: ignore[no-any-return]

    def count_read(self, drafted: Length) -> Length:
        """Tokens that the target reads of each row."""
        if self.rereads:
            return drafted + 1
        return _PADDED[drafted + self.bonus] if self.target.padded else drafted + self.bonus

    def _positions(self, drafted: Any) -> Any:
        return drafted + 1 if self.bonus else np.maximum(drafted, 1)


def expect_tokens(positions: Any, ends: float) -> Any:
    """`E`: the expected number of emitted tokens, if each position ends the draft with this probability."""
    return (1 - (1 - ends) ** positions) / ends


def count_column_bytes(config: Any, itemsize: int) -> int:
    """Bytes of keys and values that one token of one row takes, in all layers that keep any."""
    text, total = config.get_text_config(), 0
    layers = list_cache_layers(config) or [DynamicLayer()] * text.num_hidden_layers
    for layer, own in zip(layers, getattr(text, "per_layer_config", None) or [text] * len(layers), strict=False):
        if isinstance(layer, DynamicLayer):  # others keep a state; layers that share keys and values have none
            heads = own.num_attention_heads
            size = getattr(own, "head_dim", None) or own.hidden_size // heads
            total += 2 * int(getattr(own, "num_key_value_heads", None) or heads) * int(size) * itemsize
    return total


_BUCKETS = 24  # of min-entropy, four to a factor of e, from e^-4 nats on
_MASS = 1 - np.exp(-np.exp((np.arange(_BUCKETS) + 0.5) / 4 - 4))  # of all tokens but the most probable one, by bucket
_PRIOR_RATE, _PRIOR_MASS, _PRIOR_WEIGHT = 0.05, 0.1, 100.0  # assumed before the first position; the weight in positions
_BUCKET_WEIGHT = 10.0  # positions that the expectation counts for in each bucket
_ALONE_WEIGHT = 10.0  # of the prior, where a guide may as well write alone
# Of its time alone, what drafts of the best fixed length may take. Drafts that end where the drafter is unsure are faster than
# those; with several rows a draft is as long as the longest row's.
_MOST_SECONDS, _MOST_SHARED_SECONDS = 1.05, 0.9
_PROBE, _PROBED = 2, 25  # tokens of its drafts until so many positions were seen: what they cost may be lost
_LENGTHS = np.arange(1, LONGEST + 1)


class MismatchRates:
    """How often a draft ends at a position, by the drafter's min-entropy there: `-ln` of its largest probability, in nats."""

    def __init__(self) -> None:
        self._seen, self._ended = np.zeros(_BUCKETS), np.zeros(_BUCKETS)
        self._fit()

    def _fit(self) -> None:
        weight = self._seen.sum() + _PRIOR_WEIGHT
        self.overall = self.estimate(_PRIOR_WEIGHT)
        mass = ((self._seen * _MASS).sum() + _PRIOR_MASS * _PRIOR_WEIGHT) / weight
        # Where little was seen: a certain drafter is rarely contradicted.
        expected = np.minimum(self.overall * _MASS / mass, 1.0)
        self._rates: list[float] = ((self._ended + _BUCKET_WEIGHT * expected) / (self._seen + _BUCKET_WEIGHT)).tolist()

    @property
    def seen(self) -> float:
        return float(self._seen.sum())

    def estimate(self, weight: float) -> float:
        """How often drafts end, whatever the min-entropy; earlier knowledge counts as so many positions."""
        return float((self._ended.sum() + _PRIOR_RATE * weight) / (self._seen.sum() + weight))

    @staticmethod
    def bucket(min_entropy: float) -> int:
        return min(_BUCKETS - 1, max(0, int(4 * (math.log(min_entropy) + 4)))) if min_entropy > 1e-9 else 0

    def rate(self, min_entropy: float) -> float:
        return self._rates[self.bucket(min_entropy)]

    def learn(self, drafts: Iterable[tuple[Sequence[float], bool]]) -> None:
        """Of each draft the min-entropies at its verified positions, and whether it ended at the last of them."""
        for min_entropies, ends in drafts:
            for min_entropy in min_entropies:
                self._seen[self.bucket(min_entropy)] += 1
            self._ended[self.bucket(min_entropies[-1])] += ends
        self._fit()


class Schedule:
    """The lengths of the drafts of one run. `block_size` fixes them; `bonus`: a draft that stands gives one token more.

    A block of `k` drafted positions costs `k b + G(k)`: `b` for a pass of the drafter, `G(k)` for one pass of the donor over `k`
    tokens. One more position emits a token with the probability `S` that no position before it ends the draft. So it pays as long
    as `S > r (b + G(k+1) - G(k))`, with `r` the tokens per second of the best fixed block (the marginal value theorem). The
    donor's passes are padded to a few lengths: up to the next length a position costs the drafter's pass alone, then the whole
    step is weighed. `S` follows from the drafter's min-entropy at each drafted token, by how often drafts ended at that
    min-entropy so far. Greedy draws have none and follow the overall rate.
    """

    def __init__(self, drafter: PassCost, donor: PassCost, block_size: int | None, *, bonus: bool) -> None:
        self.fixed, self.rates = block_size, MismatchRates()
        self._costs = StepCosts(drafter, donor, None, 0.0, 0, bonus, rereads=False)

    def limit(self, rows: int, vocab: int, device: torch.device) -> int:
        """The longest draft of the next block."""
        if self.fixed is not None:
            return self.fixed
        longest = longest_draft(rows, vocab, device)
        return min(_PROBE, longest) if self._costs.bonus and self.rates.seen < _PROBED else longest

    def break_even_rows(self, rows: int, drafting: int, columns: int = 0) -> list[float]:
        """By length of a draft: how many rows must be expected to stand for a longer one to pay.

        `drafting` of the `rows` go through the drafter's pass, all through the donor's. Both read `columns` of each row.
        """
        if self.fixed is not None:
            return [0.0] * (self.fixed + 1)
        costs = self._at(columns)
        read = costs.count_read(_LENGTHS)
        step = read[1:] - read[:-1]  # tokens more, in each row, that the donor reads for one position more: mostly none
        positions = np.maximum(step, 1)
        drafted = costs.drafter.draft_seconds(drafting, drafting * columns)
        seconds = drafted + costs.target.per_draw * rows + np.where(step > 0, costs.target.per_token * rows, 0.0)
        speed = rows / costs.token_seconds(_LENGTHS, rows).min()  # of the best fixed block
        return [0.0, *(speed * seconds * positions / expect_tokens(positions, costs.ends)).tolist(), float(rows)]

    def drafts_pay(self, rows: int, columns: int = 0) -> bool:
        """Whether the donor that writes alone is slower, as far as is known of how often drafts end: within a standard error."""
        ends = self.rates.estimate(_ALONE_WEIGHT)
        error = math.sqrt(ends * (1 - ends) / (self.rates.seen + _ALONE_WEIGHT))
        costs = replace(self._at(columns), ends=max(ends - error, min(ends, _PRIOR_RATE)))
        drafted, most = costs.token_seconds(_LENGTHS, rows).min(), _MOST_SECONDS if rows == 1 else _MOST_SHARED_SECONDS
        return self.fixed is not None or bool(drafted < most * costs.fused_seconds(rows))

    def _at(self, columns: int) -> StepCosts:
        return replace(self._costs, ends=self.rates.overall, columns=columns)
