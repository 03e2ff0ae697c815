"""Tokens per second of every engine on a machine that need not be there: discrete events, driven by the table of costs.

    python benchmarks/simulate.py                          Qwen3-0.6B-Base and 8B on an H200, 1 to 256 requests
    python benchmarks/simulate.py --run_dir DIR            where drafts end as in the traces of this run of a guided policy
    python benchmarks/simulate.py --by_load                vLLM alone: fused, drafts of one length, and the lengths of `auto`
    python benchmarks/simulate.py --validate               this CPU and the demo pair: simulated ratios beside measured ones

What is real: the schedule of the drafts (`decoding/schedule.py`), the costs (`decoding/costs.py`), and the positions at which a
text left its draft. Those are the takeovers of the demo pair at 5 %, each of which is taken to write another token; of a run with
traces, they are where the emitted token is another than the host's. What is modelled: the time of everything. All requests are in
flight at once and have read 4,000 tokens. `before` is each engine as a reading found it, `after` as it is meant to be; between
them are the parts, one after the other. Published beside it: TokenRouter over the guide alone.
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

import pyarrow.parquet as pq
import torch
from random_pairs import clock, costs, gated, load
from schedule import patched

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.costs import MACHINES, Machine, PassCost, StepCosts
from lm_eval_takeover.decoding.schedule import Schedule
from lm_eval_takeover.demo import DEMO, PROMPT, problems
from lm_eval_takeover.forward.draft_length import LONGEST, round_up
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import Reader
from lm_eval_takeover.forward.sequences import Sequences
from lm_eval_takeover.forward.state_reader import take_reader
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import OBSERVED
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.layout import TRACES
from lm_eval_takeover.vllm.block_rule import CONCURRENCY, LAUNCH, choose_drafts

ROWS = (1, 4, 16, 64, 256)
PUBLISHED = {1: 2.63, 4: 1.68}  # TokenRouter over the guide alone
VOCAB = 151_936
SHAPES = {  # parameters that a pass reads, layers, bytes of keys and values a token
    "base": (596_000_000, 28, 114_688),  # Qwen3-0.6B-Base
    "guide": (7_568_000_000, 36, 147_456),  # Qwen3-8B, less its embedding
}
EMITTED = 400  # tokens a row, of each simulated run
LEAST_SURVIVAL = 0.05
Position = tuple[
    bool, float
]  # whether the emitted token is another than the drafted one, and the drafter's entropy in nats


@dataclass(frozen=True)
class Engine:
    """What one engine needs beside its passes, in seconds. `eager` a draw outside of a graph, with `entries` a second.

    block, row: host waits and launches of a block (a step of vLLM), and of each of its rows. drafted: of a drafted token. drawn:
    whether the donor draws at every position. columns: that a pass reads of each row.
    """

    machine: Machine
    eager: float
    block: float
    row: float
    drafted: float
    drawn: bool
    columns: int
    assumed: Machine | None = None  # by which the schedule decides, where it is another; without keys and values


# Of an H200 as a reading of the code found it, and as it is meant to be. A draw was 409 small operations: 0.8 ms in a graph, 2 ms
# of launches outside, and 52 microseconds a row; a block of `hf` waited 15 + 2k times. See docs/gpu.md.
_H200 = MACHINES["H200"]
_MANY_KERNELS = {"draw": 8e-4, "entries": VOCAB / 5.2e-5}
_VLLM = replace(_H200, launch=1.2e-5)
_GUESSED = Machine(1e-5, 2.5e12, 1e30, 4e14, 0, 1e30)  # the costs that the schedule knew, without keys and values
BEFORE = {
    "hf": Engine(replace(_H200, **_MANY_KERNELS), 2.2e-3, 3.3e-3, 2e-5, 1e-4, False, 16_384, _GUESSED),
    "fused": Engine(replace(_VLLM, **_MANY_KERNELS), 2e-3, 5e-4, 2.5e-5, 0, False, 4000),
    "drafts": Engine(replace(_VLLM, **_MANY_KERNELS), 2e-3, 5e-4, 2.5e-5, 2.4e-3, True, 4000),
}  # fmt: skip
AFTER = {
    "hf": Engine(_H200, 2.5e-5, 3e-4, 2e-6, 0, False, 4096),
    "fused": Engine(_VLLM, 2.5e-5, 1e-4, 2e-6, 0, False, 4000),
    "drafts": Engine(_VLLM, 2.5e-5, 1e-4, 2e-6, 0, False, 4000),
}
PARTS = {  # what each part of the change sets
    "the donor draws takeovers only": ("drawn",),
    "draws in kernels": ("machine", "eager"),
    "one wait a block, pinned uploads, drafts in graphs": ("block", "row", "drafted"),
    "columns of the rows that are there": ("columns",),
    "the table of costs, with keys and values": ("assumed",),
}


def steps_after(before: Engine, after: Engine) -> Iterator[tuple[str, Engine]]:
    """`before` with one part more at a time."""
    yield "before", before
    for name, fields in PARTS.items():
        changed = {field: getattr(after, field) for field in fields if getattr(after, field) != getattr(before, field)}
        if changed:
            before = replace(before, **changed)
            yield name, before


def cost_of(role: str, machine: Machine) -> PassCost:
    parameters, layers, column = SHAPES[role]
    return PassCost.on(machine, parameters=parameters, layers=layers, itemsize=2, column_bytes=column, vocab=VOCAB)


class Costs(Protocol):
    """Seconds of what an engine does for rows that all read so many `columns`, as the schedule knows them."""

    columns: int

    def draft(self, rows: int) -> float:
        """One drafted token of each row."""

    def verify(self, rows: int, tokens: int) -> float:
        """The guide over so many tokens of each row, the draws of takeovers, and the books."""


class Modelled:
    """By the table of costs."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.read = engine, engine.columns
        self.columns = 0 if engine.assumed is not None else engine.columns
        self.base, self.guide = (cost_of(role, engine.machine) for role in ("base", "guide"))

    def draft(self, rows: int) -> float:
        return self.base.draft_seconds(rows, rows * self.read) + self.engine.drafted

    def verify(self, rows: int, tokens: int) -> float:
        engine, tokens = self.engine, round_up(tokens)
        draws = engine.eager + self.guide.per_draw * rows * (tokens if engine.drawn else 1)
        return self.guide.seconds(rows * tokens, rows * self.read) + draws + engine.block + engine.row * rows


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
            break
        standing = sum(map(bool, survival))
        if not depth and 4 * standing <= drafting:
            drafting, least = standing, schedule.break_even_rows(rows, standing, columns)
    return lengths, seconds


def _accept(slots: Sequence[Row], drafted: Sequence[int], schedule: Schedule) -> int:
    """What stands of each draft is written; how many tokens that is. The schedule learns from it."""
    emitted = 0
    for row, length in zip(slots, drafted, strict=True):
        block = row.text[row.place : row.place + length]
        other = next((place for place, (differs, _) in enumerate(block) if differs), None)
        count = length if other is None else other + 1
        seen = [entropy for _, entropy in block[:count]]
        schedule.rates.learn(seen, [False] * (count - 1) + [other is not None])
        row.place += count
        emitted += count
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


def rate_of(mode: str, engine: Engine, texts: Sequence[Sequence[Position]], rows: int) -> float:
    """Tokens per second of one engine with so many requests in flight."""
    clock_ = Modelled(engine)
    if mode == "guide alone":
        return rows / clock_.guide.draft_seconds(rows, rows * clock_.read)
    if mode in ("lockstep", "fused"):
        return rows / (clock_.draft(rows) + clock_.verify(rows, 1))
    streams = [list(islice(_endless(texts, row % len(texts)), EMITTED)) for row in range(rows)]
    if mode == "drafts":  # of vLLM, whose length is fixed: the best one
        fixed = (Schedule(clock_.base, clock_.guide, k, bonus=False) for k in (2, 4, 8, 12))
        return max(blocks_rate(streams, rows, clock_, schedule, 0) for schedule in fixed)
    assumed = engine.assumed or engine.machine
    schedule = Schedule(cost_of("base", assumed), cost_of("guide", assumed), None, bonus=False)
    return blocks_rate(streams, rows, clock_, schedule, 1)


def _endless(texts: Sequence[Sequence[Position]], start: int) -> Iterator[Position]:
    return chain.from_iterable(cycle([*texts[start:], *texts[:start]]))


MODES = {"lockstep": "hf", "blocks": "hf", "fused": "fused", "drafts": "drafts"}


def report(texts: Sequence[Sequence[Position]]) -> None:
    share = sum(differs for text in texts for differs, _ in text) / sum(map(len, texts))
    print(
        f"H200, Qwen3-0.6B-Base and Qwen3-8B, bfloat16, 4,000 tokens each, modelled; drafts end at {share:.1%} of the positions\n"
    )
    heads = "".join(f"|{rows}" for rows in ROWS)
    print(f"|tokens/s, and over the guide alone; requests{heads}|\n|---{'|--:' * len(ROWS)}|")
    alone = {rows: rate_of("guide alone", AFTER["fused"], texts, rows) for rows in ROWS}
    print("|guide alone" + "".join(f"|{alone[rows]:,.0f}" for rows in ROWS) + "|")
    for title, engines in (("before", BEFORE), ("after", AFTER)):
        for mode, kind in MODES.items():
            rates = {rows: rate_of(mode, engines[kind], texts, rows) for rows in ROWS}
            print(f"|{mode}, {title}" + "".join(f"|{rates[r]:,.0f} ({rates[r] / alone[r]:.2f})" for r in ROWS) + "|")
    print("|TokenRouter, published" + "".join(f"|{f'({PUBLISHED[r]})' if r in PUBLISHED else ''}" for r in ROWS) + "|")
    for mode, kind in (("blocks", "hf"), ("fused", "fused"), ("drafts", "drafts")):
        print(f"\n|{mode}: one part more at a time, over the guide alone{heads}|\n|---{'|--:' * len(ROWS)}|")
        for name, engine in steps_after(BEFORE[kind], AFTER[kind]):
            print(
                f"|{name}" + "".join(f"|{rate_of(mode, engine, texts, r) / alone[r]:.2f}" for r in ROWS) + "|",
                flush=True,
            )


# vLLM's drafts by load


class Stepping:
    """Costs of vLLM's drafts as the rule of `block_size=auto` knows them, and an engine's step around them."""

    def __init__(self, engine: Engine, context: int, share: float) -> None:
        graphs, eager = LAUNCH["cuda"]
        base, eager_base, guide = (
            cost_of(role, replace(engine.machine, launch=launch))
            for role, launch in (("base", graphs), ("base", eager), ("guide", graphs))
        )
        self.engine, self.columns = engine, context
        self.costs = StepCosts(eager_base, guide, base, share, context, bonus=False)

    def draft(self, rows: int) -> float:
        return self.costs.drafter.draft_seconds(rows, rows * self.columns)

    def verify(self, rows: int, tokens: int) -> float:
        return self.costs.step_seconds(tokens, rows) - tokens * self.draft(rows) + self.around(rows)

    def around(self, rows: int) -> float:
        """Seconds of a step beside its passes."""
        return self.engine.block + self.engine.row * rows

    def rate(self, drafted: int | None, texts: Sequence[Sequence[Position]], rows: int) -> float:
        """Tokens per second with drafts of this length; None for the fused pair."""
        if not drafted:
            step = self.costs.fused_seconds(rows) if drafted is None else self.costs.step_seconds(0, rows)
            return rows / (step + self.around(rows))
        streams = [list(islice(_endless(texts, row % len(texts)), EMITTED)) for row in range(rows)]
        schedule = Schedule(self.costs.drafter, self.costs.target, drafted, bonus=False)
        return blocks_rate(streams, rows, self, schedule, 0)


def report_by_load(texts: Sequence[Sequence[Position]]) -> None:
    """Fused, drafts of one length at every load, and the lengths that `auto` has vLLM draft at each."""
    share = sum(differs for text in texts for differs, _ in text) / sum(map(len, texts))
    print(
        f"H200, Qwen3-0.6B-Base and Qwen3-8B, bfloat16, modelled; drafts end at {share:.1%} of the positions; no graph of the"
    )
    print(
        "base that drafts. In brackets: tokens of a draft, None for fused. The last row: auto over the best of the others."
    )
    for context in (4000, 1000, 250):
        clock_ = Stepping(AFTER["drafts"], context, share)
        choice = choose_drafts(clock_.costs, CONCURRENCY["cuda"])
        chosen = [next((length for _, end, length in choice.ranges if rows <= end), None) for rows in ROWS]
        print(f"\n|tokens/s, {context:,} tokens in each context; requests" + "".join(f"|{rows}" for rows in ROWS))
        print("|---" + "|--:" * len(ROWS) + "|")
        fixed: dict[str, int | None] = {"fused": None} | {f"drafts of {length}": length for length in (4, 8)}
        rates = {name: [clock_.rate(length, texts, rows) for rows in ROWS] for name, length in fixed.items()}
        auto = [clock_.rate(length, texts, rows) for length, rows in zip(chosen, ROWS, strict=True)]
        for name, found in rates.items():
            print(f"|{name}" + "".join(f"|{rate:,.0f}" for rate in found) + "|")
        print("|auto" + "".join(f"|{rate:,.0f} ({length})" for rate, length in zip(auto, chosen, strict=True)) + "|")
        best = map(max, zip(*rates.values(), strict=True))
        print("|auto over the best" + "".join(f"|{ours / one:.2f}" for ours, one in zip(auto, best, strict=True)) + "|")


# Texts


def read_run(folder: Path) -> list[list[Position]]:
    """The positions of every sample of a run with traces."""
    columns = ["task", "doc_id", "sample", "position", "token_id", "host_token_id", "base_entropy"]
    found: dict[tuple[str, int, int], list[tuple[int, Position]]] = {}
    for part in sorted((folder / TRACES).glob("*.parquet")):
        for row in pq.read_table(part, columns=columns).to_pylist():
            where = (row["task"], row["doc_id"], row["sample"])
            differs = row["host_token_id"] is not None and row["token_id"] != row["host_token_id"]
            found.setdefault(where, []).append((row["position"], (differs, row["base_entropy"] or 0.0)))
    return [[position for _, position in sorted(text)] for text in found.values()]


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

        def counted(pool: Any, slots: Sequence[int], finished: list[int]) -> None:
            blocks[0] += 1
            plain(pool, slots, finished)

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
            print(
                f"|{batch}|{name} over the guide alone|{found:.2f}|{modelled:.2f}|{modelled / found:.2f}|", flush=True
            )
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
