"""Tokens per second of every engine on a machine that need not be there: discrete events, driven by the table of costs.

    python benchmarks/simulate.py                          Qwen3-0.6B-Base and 8B on an H200, from 1 request to what memory holds
    python benchmarks/simulate.py --run_dir DIR            where drafts end as in the traces of this run of a guided policy
    python benchmarks/simulate.py --by_load                vLLM alone: fused, drafts of one length, and the lengths of `auto`
    python benchmarks/simulate.py --validate               this CPU and the demo pair: simulated ratios beside measured ones

What is real: the schedule of the drafts and the costs (`decoding/costs.py`), and the positions at which a text left its draft.
Those are the takeovers of the demo pair at 5 %, each of which is taken to write another token; of a run with traces, they are
where the emitted token is another than the host's. What is modelled: the time of everything. All requests are in flight at once
and have read 4,000 tokens. vLLM schedules ahead, so its step takes the larger of the GPU's time and the host's. Each constant
has a range; the tables show what all least and all most of them give. Published figures stand beside.
"""

import argparse
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from random_pairs import clock, costs, gated, load
from schedule import patched

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.costs import MACHINES, Machine, PassCost, Schedule, StepCosts
from lm_eval_takeover.demo import DEMO, PROMPT, problems
from lm_eval_takeover.forward.caches import LONGEST, Sequences, round_up
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import Reader, take_reader
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import OBSERVED, Generation, Request, Sampling
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.vllm.block_rule import choose_drafts

ROWS = (1, 4, 8, 16, 64)
VOCAB = 151_936
SHAPES = {  # parameters that a pass reads, layers, bytes of keys and values a token, parameters that memory holds
    "base": (596_000_000, 28, 114_688, 596_000_000),  # Qwen3-0.6B-Base
    "guide": (7_568_000_000, 36, 147_456, 8_190_000_000),  # Qwen3-8B, whose embedding a pass does not read
}
CONTEXT = 4000  # tokens of each request
MEMORY, SHARE, RESERVED = (
    141e9,
    0.9,
    3e9,
)  # bytes of an H200, what vLLM takes, and what activations and graphs need of that
PUBLISHED = {  # over the guide alone, by the number of requests; other models, H100s
    "guide with EAGLE-3, published": {1: "2.4"},
    "guide with DFlash, published (throughput)": {8: "1.85"},
    "TokenRouter, published": {1: "2.63", 4: "1.68"},
}
EMITTED = 400  # tokens a row, of each simulated run
LEAST_SURVIVAL = 0.05
Position = tuple[bool, float]  # whether the emitted token is another than the drafted one, and the drafter's entropy in nats


@dataclass(frozen=True)
class Constants:
    """Seconds that no table of costs has. docs/gpu.md says where each comes from."""

    graphed: float  # a layer's launches in a CUDA graph
    eager: float  # and outside
    step: float  # the host's work on a step of vLLM's
    request: float  # and on each of its requests
    replayed: float  # the host's work on a graph of the drafter
    operation: float  # a launch of a small operation


RANGE = {
    "least": Constants(0.8e-5, 6.0e-5, 5e-4, 2e-6, 1e-4, 4e-6),
    "middle": Constants(1.2e-5, 8.6e-5, 1e-3, 5e-6, 2e-4, 6e-6),
    "most": Constants(1.5e-5, 1.5e-4, 2e-3, 1e-5, 3e-4, 8e-6),
}
_FUSED, _VERIFYING = 49, 78  # operations of the gate a step, counted
_H200 = MACHINES["H200"]


def cost_of(role: str, machine: Machine, cache: float = 1.0) -> PassCost:
    """cache: bytes of a key or value over those of bfloat16."""
    parameters, layers, column, _ = SHAPES[role]
    return PassCost.on(machine, parameters=parameters, layers=layers, itemsize=2, column_bytes=int(column * cache), vocab=VOCAB)


def count_capacity(roles: Sequence[str], cache: float = 1.0) -> int:
    """Requests that memory holds."""
    room = MEMORY * SHARE - RESERVED - sum(2 * SHAPES[role][3] for role in roles)
    return int(room / (CONTEXT * cache * sum(SHAPES[role][2] for role in roles)))


class Costs(Protocol):
    """Seconds of what an engine does for rows that all read so many `columns`, as the schedule knows them."""

    columns: int

    def draft(self, rows: int) -> float:
        """One drafted token of each row."""

    def verify(self, rows: int, tokens: int) -> float:
        """The guide over so many tokens of each row, the draws of takeovers, and the books."""


class Served:
    """vLLM: the larger of what the GPU and the host need for a step. `graphs`: whether the drafter's passes are graphs."""

    def __init__(self, constants: Constants, *, graphs: bool = True, cache: float = 1.0, context: int = CONTEXT) -> None:
        self.constants, self.graphs, self.columns = constants, graphs, context
        machine = replace(_H200, launch=constants.graphed, cache=_H200.weights, several=0.0)
        self.base, self.guide = (cost_of(role, machine, cache) for role in ("base", "guide"))
        self.costs = StepCosts(self.base, self.guide, self.base, 0.05, context, bonus=False)

    def host(self, rows: int, operations: int) -> float:
        return self.constants.step + self.constants.request * rows + self.constants.operation * operations

    def alone(self, rows: int) -> float:
        return max(self.guide.draft_seconds(rows, rows * self.columns), self.host(rows, 0))

    def fused(self, rows: int) -> float:
        return max(self.costs.fused_seconds(rows), self.host(rows, _FUSED))

    def draft(self, rows: int) -> float:
        return 0.0  # the whole step is in `verify`

    def verify(self, rows: int, tokens: int) -> float:
        """The drafter's first pass reads what the target has read. It is one graph, and all other passes are another."""
        passes = max(tokens, 1)
        launching = (
            min(passes, 2) * self.constants.replayed if self.graphs else passes * SHAPES["base"][1] * self.constants.eager
        )
        return max(float(self.costs.step_seconds(tokens, rows)), self.host(rows, _VERIFYING) + launching)

    def rate(self, drafted: int | None, texts: Sequence[Sequence[Position]], rows: int) -> float:
        """Tokens per second with drafts of this length; None for the fused pair."""
        if not drafted:
            return rows / (self.fused(rows) if drafted is None else self.verify(rows, 0))
        streams = [list(islice(_endless(texts, row % len(texts)), EMITTED)) for row in range(rows)]
        return blocks_rate(streams, rows, self, Schedule(self.base, self.guide, drafted, bonus=False), 0)


class Plain:
    """`hf`, by what was measured: the host waits once a block. launch: seconds of a layer's launches."""

    def __init__(self, launch: float = _H200.launch) -> None:
        self.columns = 4096
        self.base, self.guide = (cost_of(role, replace(_H200, launch=launch)) for role in ("base", "guide"))

    def draft(self, rows: int) -> float:
        return self.base.draft_seconds(rows, rows * self.columns)

    def verify(self, rows: int, tokens: int) -> float:
        tokens = round_up(tokens)
        passed = self.guide.seconds(rows * tokens, rows * self.columns)
        return passed + self.guide.draw + self.guide.per_draw * rows + self.guide.block

    def rate(self, texts: Sequence[Sequence[Position]], rows: int) -> float:
        streams = [list(islice(_endless(texts, row % len(texts)), EMITTED)) for row in range(rows)]
        return blocks_rate(streams, rows, self, Schedule(self.base, self.guide, None, bonus=False), 1)


# Discrete events: one block after the other; a row whose text has ended makes room for the next one.


@dataclass
class Row:
    text: Sequence[Position]
    place: int = 0

    @property
    def left(self) -> int:
        return len(self.text) - self.place


def blocks_rate(
    texts: Sequence[Sequence[Position]],
    rows: int,
    clock_: Costs,
    schedule: Schedule,
    depth: int,
    *,
    drain: bool = False,
) -> float:
    """Tokens per second of drafts by the real schedule, in so many slots.

    `depth` drafted tokens are on their way while the next one is asked for. Ends when a slot stays empty, or after all texts.
    """
    waiting = deque(map(Row, texts))
    slots = [waiting.popleft() for _ in range(min(rows, len(waiting)))]
    emitted, seconds = 0, 0.0
    while slots and (drain or len(slots) == min(rows, len(texts))):
        drafted, drafting = _draft(slots, schedule, clock_, depth)
        seconds += drafting + clock_.verify(len(slots), max(drafted))
        emitted += _accept(slots, drafted, schedule)
        slots = [row for row in slots if row.left]
        while waiting and len(slots) < rows:
            slots.append(waiting.popleft())
    return emitted / seconds


def _draft(slots: Sequence[Row], schedule: Schedule, clock_: Costs, depth: int) -> tuple[list[int], float]:
    """As `Blocks._draft`: how many tokens of each row are drafted, and the seconds that it takes."""
    rows, columns = len(slots), clock_.columns
    least = schedule.break_even_rows(rows, rows, columns)
    survival, lengths, drafting, passes, seconds = [1.0] * rows, [0] * rows, rows, 0, 0.0
    limits = [min(schedule.fixed or LONGEST, row.left) for row in slots]
    for number in range(max(limits) + depth):
        if passes < max(limits):
            seconds += clock_.draft(drafting)
            passes += 1
        known = number - depth
        if known < 0:
            continue
        for place, row in enumerate(slots):
            if survival[place]:
                lengths[place] += 1
                stands = survival[place]
                if schedule.fixed is None:
                    stands *= 1 - schedule.rates.rate(row.text[row.place + known][1])
                ends = lengths[place] == limits[place] or stands <= LEAST_SURVIVAL
                survival[place] = 0.0 if ends else stands
        if sum(survival) <= least[known + 1]:
            lengths = [length + (passes - known - 1) * bool(stands) for length, stands in zip(lengths, survival, strict=True)]
            break  # what is on its way counts where a row still stands
        standing = sum(map(bool, survival))
        if not depth and 4 * standing <= drafting:
            drafting, least = standing, schedule.break_even_rows(rows, standing, columns)
    return lengths, seconds


def _accept(slots: Sequence[Row], drafted: Sequence[int], schedule: Schedule) -> int:
    """What stands of each draft is written; how many tokens that is. The schedule learns from it."""
    emitted, verified = 0, []
    for row, length in zip(slots, drafted, strict=True):
        block = row.text[row.place : row.place + length]
        other = next((place for place, (differs, _) in enumerate(block) if differs), None)
        count = length if other is None else other + 1
        seen = [entropy for _, entropy in block[:count]]
        verified.append((seen, other is not None))
        row.place += count
        emitted += count
    schedule.rates.learn(verified)
    return emitted


def steps_rate(
    texts: Sequence[Sequence[Position]], rows: int, step: Callable[[int], float], entry: float, *, refill: bool
) -> float:
    """Tokens per second of one token a step, and `entry` seconds for each text.

    Without `refill` a batch is finished before the next one begins.
    """
    waiting, slots, seconds = deque(map(len, texts)), list[int](), entry * len(texts)
    while slots or waiting:
        if refill or not slots:
            while waiting and len(slots) < rows:
                slots.append(waiting.popleft())
        seconds += step(len(slots))
        slots = [left - 1 for left in slots if left > 1]
    return sum(map(len, texts)) / seconds


def _endless(texts: Sequence[Sequence[Position]], start: int) -> Iterator[Position]:
    return chain.from_iterable(cycle([*texts[start:], *texts[:start]]))


_LENGTHS = (2, 4, 8, 12)  # of vLLM's drafts, the best of which is shown


def report(texts: Sequence[Sequence[Position]]) -> None:
    share = sum(differs for text in texts for differs, _ in text) / sum(map(len, texts))
    print(
        f"H200, Qwen3-0.6B-Base and Qwen3-8B, bfloat16, {CONTEXT:,} tokens each, modelled; drafts end at {share:.1%} of the "
        f"positions.\nTokens a second, and in brackets over the guide alone: by all most and all least of the constants.\n"
    )
    pair, both = ("base", "guide"), [RANGE["most"], RANGE["least"]]
    engines: dict[str, tuple[Callable[[Constants, int], float], int]] = {
        "guide alone": (lambda c, rows: rows / Served(c).alone(rows), count_capacity(("guide",))),
        "`hf`, blocks": (lambda c, rows: Plain().rate(texts, rows), 64),
        "`hf`, if half the kernels take half the time": (lambda c, rows: Plain(_H200.launch / 2).rate(texts, rows), 64),
        "vLLM, fused": (lambda c, rows: Served(c).rate(None, texts, rows), count_capacity(pair)),
        "vLLM, drafts by an eager drafter": (
            lambda c, rows: max(Served(c, graphs=False).rate(k, texts, rows) for k in _LENGTHS), count_capacity(pair)
        ),
        "vLLM, drafts": (lambda c, rows: max(Served(c).rate(k, texts, rows) for k in _LENGTHS), count_capacity(pair)),
        "vLLM, fused, FP8 cache": (lambda c, rows: Served(c, cache=0.5).rate(None, texts, rows), count_capacity(pair, 0.5)),
        "vLLM, drafts, FP8 cache": (
            lambda c, rows: max(Served(c, cache=0.5).rate(k, texts, rows) for k in _LENGTHS), count_capacity(pair, 0.5)
        ),
    }  # fmt: skip
    print("|requests" + "".join(f"|{rows}" for rows in ROWS) + "|at capacity|\n|---" + "|--:" * (len(ROWS) + 1) + "|")
    alone = engines["guide alone"]
    for name, (rate, capacity) in engines.items():
        cells = []
        for rows in (*ROWS, capacity):
            found = [rate(constants, rows) for constants in both]
            base = [alone[0](constants, rows if rows in ROWS else alone[1]) for constants in both]
            over = " to ".join(f"{one / other:.2f}" for one, other in zip(found, base, strict=True))
            range_ = " to ".join(dict.fromkeys(f"{one:,.0f}" for one in found))
            cells.append(range_ + (f" ({over})" if name != "guide alone" else ""))
        last = "" if name.startswith("`hf`") else f"{cells[-1]}, {capacity} requests"
        print(f"|{name}|" + "|".join([*cells[:-1], last]) + "|", flush=True)
    for name, ratios in PUBLISHED.items():
        print(f"|{name}" + "".join(f"|{f'({ratios[rows]})' if rows in ratios else ''}" for rows in ROWS) + "||")


def report_by_load(texts: Sequence[Sequence[Position]]) -> None:
    """Fused, drafts of one length at every load, and the lengths that `auto` has vLLM draft at each."""
    share = sum(differs for text in texts for differs, _ in text) / sum(map(len, texts))
    print(
        f"H200, Qwen3-0.6B-Base and Qwen3-8B, bfloat16, modelled by the middle constants; drafts end at {share:.1%}.\n"
        f"In brackets: tokens of a draft, None for fused. The last row: auto over the best of the others."
    )
    for context in (4000, 1000):
        served = Served(RANGE["middle"], context=context)
        rows_of = (*ROWS, count_capacity(("base", "guide")) * CONTEXT // context)
        choice = choose_drafts(replace(served.costs, ends=share), 1024)  # requests at a time: vLLM's default on large GPUs
        chosen = [next((length for _, end, length in choice.ranges if rows <= end), None) for rows in rows_of]
        print(f"\n|tokens/s, {context:,} tokens in each context; requests" + "".join(f"|{rows}" for rows in rows_of) + "|")
        print("|---" + "|--:" * len(rows_of) + "|")
        fixed: dict[str, int | None] = {"fused": None} | {f"drafts of {length}": length for length in (4, 8)}
        rates = {name: [served.rate(length, texts, rows) for rows in rows_of] for name, length in fixed.items()}
        auto = [served.rate(length, texts, rows) for length, rows in zip(chosen, rows_of, strict=True)]
        for name, found in rates.items():
            print(f"|{name}" + "".join(f"|{rate:,.0f}" for rate in found) + "|")
        print("|auto" + "".join(f"|{rate:,.0f} ({length})" for rate, length in zip(auto, chosen, strict=True)) + "|")
        best = map(max, zip(*rates.values(), strict=True))
        print("|auto over the best" + "".join(f"|{ours / one:.2f}" for ours, one in zip(auto, best, strict=True)) + "|")


# Texts


def read_run(folder: Path) -> list[list[Position]]:
    """The positions of every sample of a run with traces."""
    texts = []
    for _, found in read_run_folder(folder).read_traces(["token_id", "host_token_id", "base_entropy"]):
        differs = (found["host_token_id"] >= 0) & (found["host_token_id"] != found["token_id"])
        entropies = np.nan_to_num(found["base_entropy"]).tolist()
        texts.append(list(zip(differs.tolist(), entropies, strict=True)))
    return texts


def positions_of(generation: Generation) -> list[Position]:
    """Where a traced text left what the base draws, and how unsure the base was."""
    assert generation.observed is not None
    width = len(OBSERVED)
    host, entropy = OBSERVED.index("host_token"), OBSERVED.index("base_entropy")
    rows = [generation.observed[start : start + width] for start in range(0, len(generation.observed), width)]
    return [(token != row[host], row[entropy]) for token, row in zip(generation.tokens, rows, strict=True)]


def write_demo(
    rows: int, tokens: int, *, every_takeover: bool = False
) -> tuple[Pair, Policy, list[Request], list[list[Position]]]:
    """The demo pair, a policy that takes over 5 % of its tokens, requests, and where their texts left the drafts.

    With `every_takeover`, that is at each, though a model that agrees often draws the same token.
    """
    pair = load(dict(DEMO), "cpu", "float32")
    texts = [tuple(pair.encode(PROMPT.format(problem=row["problem"]))) for row in problems()]
    requests = [Request(texts[i % 8], i // 8, tokens, Sampling(0.6, 0.95)) for i in range(rows)]
    policy = gated(pair, requests[:16], 0.05)
    made = dict(blockwise.generate(pair, policy, requests, batch_size=16, traced=True))
    texts_of = [positions_of(made[i]) for i in range(rows)]
    if every_takeover:
        taken = (made[i].taken_over for i in range(rows))
        texts_of = [
            [(took, entropy) for took, (_, entropy) in zip(one, text, strict=True)]
            for one, text in zip(taken, texts_of, strict=True)
        ]
    return pair, policy, requests, texts_of


# Validation: the same simulation by passes that are timed on this machine


class Measured:
    """Seconds of passes of this pair here, and of all that is around them."""

    columns = 0

    def __init__(self, pair: Pair, policy: Policy, requests: Sequence[Request], batch: int) -> None:
        length = len(requests[0].prompt) + requests[0].max_new_tokens // 2
        self.pair, self.policy, self.requests, self.batch = pair, policy, requests, batch
        b, self._guide = costs(pair, batch, length).turns
        # A quarter of the rows, whose keys and values are read out of the others: below that, less of the same.
        self._few = max(1, batch // 4)
        self._base = (time_some(pair, range(0, batch, 4), length) if batch >= 4 else b, b)
        # Around the passes of a block: so much, and so much for each drafted token. From drafts of fixed lengths.
        few, many = (self._around(size) for size in (3, 12))
        self._drafted = max(0.0, (many - few) / 9)
        self._block = few - 3 * self._drafted

    def _around(self, size: int) -> float:
        """Seconds of a block of this size outside of its passes."""
        blocks, plain = [0], blockwise.Blocks.advance

        def counted(engine: Any) -> None:
            blocks[0] += 1
            plain(engine)

        with patched(blockwise.Blocks, "advance", counted), timed() as spent:
            whole = run(self.pair, self.policy, self.requests, self.batch, size)
        return (whole - spent["passes"] - spent["prompts"]) / blocks[0]

    def draft(self, rows: int) -> float:
        few, all_ = self._base
        if rows <= self._few:
            return few * (1 + rows / self._few) / 2 + self._drafted
        return few + (all_ - few) * (rows - self._few) / max(self.batch - self._few, 1) + self._drafted

    def verify(self, rows: int, tokens: int) -> float:
        padded = round_up(tokens)
        read = self._guide.get(padded) or self._guide[32] * padded / 32
        return self._block + self._guide[1] + (read - self._guide[1]) * rows / self.batch


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds in passes over texts and over prompts while this lasts."""
    spent = {"passes": 0.0, "prompts": 0.0}

    def around(owner: Any, name: str, prompts: bool) -> Any:
        plain = owner.__dict__[name]
        call = plain.__func__ if isinstance(plain, classmethod) else plain
        inside = [False]

        def work(*arguments: Any, **named: Any) -> Any:
            if inside[0]:
                return call(*arguments, **named)
            started, inside[0] = clock(), True
            try:
                return call(*arguments, **named)
            finally:
                inside[0] = False
                spent["prompts" if prompts else "passes"] += clock() - started

        return patched(owner, name, classmethod(work) if isinstance(plain, classmethod) else work)

    # Prompts are read by passes, too: what they take is taken off those.
    passes, prompts = around(Reader, "read", False), around(Reader, "prefill", True)
    with passes, prompts, around(Sequences, "append", False), around(Sequences, "prefill", True):
        yield spent


def run(pair: Pair, policy: Policy, requests: Sequence[Request], batch: int, block: int | None = None) -> float:
    """Seconds of all requests by blocks, or lockstep for a block of 0."""
    started = clock()
    if block == 0:
        list(lockstep.generate(pair, policy, requests, batch_size=batch))
    else:
        list(blockwise.generate(pair, policy, requests, batch_size=batch, block_size=block))
    return clock() - started


@torch.inference_mode()
def time_some(pair: Pair, slots: range, length: int, repeats: int = 9) -> float:
    """Seconds of a pass of the base over one token of these slots, which are not the first ones."""
    reader = take_reader(prepare_pass(pair.member("base")), slots.stop, pair.vocab_size)
    read = reader.prefill([[7] * length])
    for slot in range(slots.stop):
        reader.copy_row(read, 0, slot)
    ids, found = torch.full((len(slots), 1), 5), []
    for _ in range(repeats):
        started = clock()
        reader.read(slots, ids)
        found.append(clock() - started)
    return statistics.median(found)


def time_steps(
    pair: Pair, policy: Policy, requests: Sequence[Request], batch: int, block: int | None
) -> tuple[Callable[[int], float], float]:
    """Seconds of a step of so many rows, and of a text beside its steps: from texts of two lengths."""
    found = []
    for rows in (1, batch):
        seconds = []
        for tokens in (8, 40):
            with timed() as spent:
                whole = run(pair, policy, [replace(one, max_new_tokens=tokens) for one in requests[:rows]], rows, block)
            seconds.append(whole - spent["prompts"])
        found.append(((seconds[1] - seconds[0]) / 32, seconds[0]))
    (one, _), (all_, short) = found
    return lambda rows: one + (all_ - one) * (rows - 1) / max(batch - 1, 1), max(0.0, short - 8 * all_) / batch


def validate(batches: Sequence[int], rounds: int) -> bool:
    """Ratios that this machine gives beside simulated ones; whether all are within 15 %."""
    print("|batch|ratio|measured|simulated|simulated over measured|\n|--:|---|--:|--:|--:|")
    worst = 0.0
    for batch in batches:
        pair, policy, requests, texts = write_demo(max(2 * batch, 8), 96)
        alone = Pair(None, pair.guide)
        runs: dict[str, Callable[[], float]] = {
            "guide alone": partial(run, alone, GuideAlone(), requests, batch),
            "lockstep": partial(run, pair, policy, requests, batch, 0),
            "blocks": partial(run, pair, policy, requests, batch),
        }
        rates: dict[str, list[float]] = {name: [] for name in runs}
        expected: dict[str, list[float]] = {"lockstep": [], "blocks": []}
        for round_ in range(rounds + 1):
            for name, one in runs.items():
                with timed() as spent:
                    seconds = one() - spent["prompts"]
                if round_:  # the first round warms up
                    rates[name].append(1 / seconds)
            if round_:
                measured = Measured(pair, policy, requests, batch)
                drafter, donor = (PassCost.of(prepare_pass(member)) for member in pair.members)
                schedule = Schedule(drafter, donor, None, bonus=False)
                by_step = {
                    name: steps_rate(texts, batch, *time_steps(who, how, requests, batch, block), refill=block != 0)
                    for name, who, how, block in (
                        ("guide alone", alone, GuideAlone(), None),
                        ("lockstep", pair, policy, 0),
                    )
                }
                drafts = blocks_rate(texts, batch, measured, schedule, 0, drain=True)
                expected["lockstep"].append(by_step["lockstep"] / by_step["guide alone"])
                expected["blocks"].append(drafts / by_step["guide alone"])
        for name in expected:
            found = statistics.median(a / b for a, b in zip(rates[name], rates["guide alone"], strict=True))
            modelled = statistics.median(expected[name])
            worst = max(worst, abs(modelled / found - 1))
            print(f"|{batch}|{name} over the guide alone|{found:.2f}|{modelled:.2f}|{modelled / found:.2f}|", flush=True)
    print(f"largest difference: {worst:.1%}, allowed: 15 %")
    return worst <= 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run_dir", type=Path, help="a run of a guided policy with traces, instead of the demo pair")
    parser.add_argument("--by_load", action="store_true", help="vLLM's drafts by the number of requests, instead")
    parser.add_argument("--validate", action="store_true", help="on this CPU, instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="of --validate")
    parser.add_argument("--rounds", type=int, default=5, help="of --validate")
    options = parser.parse_args()
    if options.validate:
        torch.set_num_threads(1)
        raise SystemExit(0 if validate(options.batch, options.rounds) else 1)
    texts = read_run(options.run_dir) if options.run_dir else write_demo(32, 200, every_takeover=True)[3]
    (report_by_load if options.by_load else report)(texts)


if __name__ == "__main__":
    main()
