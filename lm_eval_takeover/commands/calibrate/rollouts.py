"""Rollouts of a calibration: the host's with every score of their tokens, and a method's, by which its rate is solved for.

Lines 1 and 2 of Algorithm 1: prompts are done in groups of one batch, each with one pass per model over the texts. A journal
beside the calibration gets each finished group, so an interrupted calibration goes on where it was. All scores are in memory,
four bytes each: 33 MB a score for 500 rollouts of 16,384 tokens.

Each takeover changes what the host writes next, so a method's rate is measured on rollouts of held-out prompts. These share
their random numbers, so the rate is nearly monotone in the budget parameter (spike ratio, leniency, weight).
"""

import contextlib
import importlib.metadata
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from lm_eval_takeover import stopping
from lm_eval_takeover.backends import Backend
from lm_eval_takeover.calibration.files import TOLERANCE, Calibration, Target
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.commands.calibrate.prompts import Prompts
from lm_eval_takeover.decoding.emission import by_positions
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.decoding.rows import is_cut_off
from lm_eval_takeover.decoding.teacher_forcing import read_aligned
from lm_eval_takeover.errors import ArgumentError, CalibrationError, PluginError, RunDirError, run_in_batches
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.method.reading import PairReading
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, TASK_SAMPLING, Generation, Request, Sampling
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.progress import Progress
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of

logger = logging.getLogger(__name__)

LIBRARIES = ("lm-eval-takeover", "torch", "transformers")  # whose versions a calibration file names
MOST = 12  # measurements of one target
_MOST_OF_ONE = 0.1  # of the tokens in one text; more say little of others
_NEAR = 0.001  # of a rate: fresh prompts add more noise
_LOW, _HIGH = 1e-4, 1e9  # bounds of the search, in logarithms, where a parameter's own are 0 and infinity


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Rollouts of a pair's host on prompts, to an end token or `until`. Host and donor are those of the backend's policy."""

    backend: Backend
    prompts: Prompts
    sampling: Sampling = TASK_SAMPLING
    max_gen_toks: int = TASK_MAX_GEN_TOKS
    until: tuple[str, ...] = ()
    seed: int = 0
    batch_size: int = 64
    window: int = 10
    bars: Mapping[str, Any] = field(default_factory=dict)  # tqdm's options of progress bars

    @property
    def pair(self) -> Pair:
        return self.backend.pair

    @property
    def roles(self) -> tuple[str, str]:
        """The host and the donor."""
        return DIRECTIONS[self.backend.policy.direction]

    def describe(self) -> dict[str, Any]:
        """Models, prompts, decoding and libraries, as a calibration file has them."""
        base, guide = self.pair.member("base"), self.pair.member("guide")
        limits = {"max_gen_toks": self.max_gen_toks, "until": list(self.until), "seed": self.seed}
        return {
            "base": base.id,
            "guide": guide.id,
            "vocabulary": {"size": self.pair.vocabulary.size, "digest": self.pair.vocabulary.digest},
            "dtypes": {member.role: member.weights.dtype for member in (base, guide)},
            "quantization": {member.role: own for member in (base, guide) if (own := member.given.quantization)},
            "library_versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
            "direction": self.backend.policy.direction,
            "prompts": self.prompts.source,
            "decoding": self.sampling.settings() | limits,
            "diagnostic": self.prompts.benchmarks,
        }

    def make_requests(self, texts: Sequence[str], numbers: Sequence[int]) -> list[Request]:
        """One request per prompt; `numbers` are their rows. Raises a TakeoverError where none fits or one cannot be read."""
        limit = self.pair.max_length or 2**31
        requests = []
        for number, text in zip(numbers, texts, strict=True):
            ids = tuple(self.pair.encode(text))
            if ids and (room := limit - len(ids)) >= 1:
                label = f"calibration prompt {number + 1}"
                self.pair.check_ids(ids, label)
                requests.append(Request(ids, 0, min(self.max_gen_toks, room), self.sampling, self.until, label))
        if not requests:
            raise ArgumentError(f"--prompts: all {len(texts)} are empty or exceed the context of {limit} tokens")
        if left_out := len(texts) - len(requests):
            logger.warning("%d prompts are empty or longer than the context of %d tokens; left out", left_out, limit)
        return requests

    def write(self, requests: Sequence[Request], policy: Policy, bar: Progress) -> Iterator[tuple[int, Generation]]:
        """`(index into requests, generation)` as texts finish; each moves the bar on."""
        count, rows = bar.count_tokens, self.batch_size
        for place, generation in self.backend.generate(requests, policy=policy, seed=self.seed, rows=rows, count_tokens=count):
            bar.finish(len(generation.tokens), generation.takeovers)
            yield place, generation


class Rollout(NamedTuple):
    """By name the scores `[tokens]` of one text, in nats; and whether it ran into its limit of tokens."""

    scores: Mapping[str, NDArray[np.float32]]
    cut: bool

    def pack(self, scores: Sequence[Score]) -> bytes:
        """As a journal keeps it: these scores one after the other, and whether it was cut."""
        return np.stack([self.scores[score.name] for score in scores]).astype(np.float32).tobytes() + bytes([self.cut])

    @classmethod
    def unpack(cls, content: bytes, scores: Sequence[Score]) -> Self:
        rows = np.frombuffer(content[:-1], np.float32).reshape(len(scores), -1).copy()
        return cls(dict(zip((score.name for score in scores), rows, strict=True)), bool(content[-1]))


class Rollouts:
    """Rollouts with these scores, by the numbers of their prompts, and small results; the journal of a folder keeps them."""

    def __init__(self, scores: Sequence[Score], folder: Path | None = None) -> None:
        self.scores, self.run = scores, None if folder is None else RunWriter(folder)
        self.done: dict[int, Rollout] = {}
        self.results: dict[str, Any] = {}
        if self.run is not None:
            with self.run.writing() as journal:
                self.done = {
                    int(number): Rollout.unpack(content, scores) for number, content in journal.read_evidence("rollout")
                }
                self.results = {name.decode(): json.loads(content) for name, content in journal.read_evidence("result")}

    def of(self, score: str) -> list[NDArray[np.float32]]:
        """A score of all rollouts, `[tokens]` each."""
        return [rollout.scores[score] for rollout in self.done.values()]

    def add(self, done: Mapping[int, Rollout]) -> None:
        """Keep the rollouts of a group: all of them, or after a kill none, since their sums depend on their batch."""
        self.done |= done
        if self.run is not None:
            with self.run.writing() as journal:
                journal.add_evidence("rollout", {b"%d" % number: one.pack(self.scores) for number, one in done.items()})

    def remember(self, name: str, value: Any) -> None:
        self.results[name] = value
        if self.run is not None:
            with self.run.writing() as journal:
                journal.add_evidence("result", {name.encode(): json.dumps(value).encode()})

    def close(self, *, keep: bool = True) -> None:
        """Let go of the folder, which stays where something is in it that is still needed."""
        if self.run is not None:
            self.run.close()
            if not keep or not (self.done or self.results):
                shutil.rmtree(self.run.folder, ignore_errors=True)


@contextlib.contextmanager
def open_rollouts(setup: Setup, out: Path, scores: Sequence[Score]) -> Iterator[Rollouts]:
    """What this calibration, and no other, keeps beside `out`. Raises ArgumentError where another process is at work there."""
    digests = {"prompts": setup.prompts.source["digest"], "scores": {score.name: score.source.digest for score in scores}}
    measured = json.dumps(setup.describe() | digests, default=asdict)
    folder = out.with_name(f".{out.name}.{digest_of(measured)[:12]}.partial")
    try:
        rollouts = Rollouts(scores, folder)
    except RunDirError as error:
        raise ArgumentError(f"--out '{out}': what is measured cannot be kept beside it: {error}") from error
    going_on = "what was finished is kept, and the same command goes on from there"
    stopping.on_stop(lambda: going_on if rollouts.done or rollouts.results else "nothing was written")
    with contextlib.closing(rollouts):
        yield rollouts


@torch.inference_mode()
def collect(setup: Setup, rollouts: Rollouts) -> None:
    """Roll out and score every prompt that is not done yet."""
    requests = setup.make_requests(setup.prompts.texts, setup.prompts.source["indices"])
    # Groups of nearly one prompt length. They follow from the requests alone: an interrupted run has the same float32 sums.
    order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), i))
    groups = [order[start : start + setup.batch_size] for start in range(0, len(order), setup.batch_size)]
    kept = len(rollouts.done)
    with Progress(len(requests), kept, quiet=False, label="Calibrating", unit="rollout", bars=setup.bars) as bar:
        for group in groups:
            if todo := [i for i in group if i not in rollouts.done]:
                written = _roll_out(setup, [requests[i] for i in todo], rollouts.scores, bar)
                rollouts.add(dict(zip(todo, written, strict=True)))


def _roll_out(setup: Setup, requests: Sequence[Request], scores: Sequence[Score], bar: Progress) -> list[Rollout]:
    """The host's rollouts and their scores, which come in vLLM with the pass that writes."""
    if not isinstance(setup.backend, TransformersBackend):
        by_place = {}
        for place, tokens, found in setup.backend.roll_out(requests, seed=setup.seed, count_tokens=bar.count_tokens):
            by_place[place] = tokens, found
            bar.finish(len(tokens))
        texts = [by_place[place] for place in range(len(requests))]
    else:
        generations = dict(setup.write(requests, ALONE[setup.roles[0]](), bar))
        pairs = [(request, generations[place].tokens) for place, request in enumerate(requests)]
        batches = run_in_batches(partial(_score_texts, setup, scores), pairs, len(pairs))
        texts = [(tokens, row) for batch, rows in batches for (_, tokens), row in zip(batch, rows, strict=True)]
    rollouts = []
    for request, (ids, row) in zip(requests, texts, strict=True):
        for score in scores:
            _check_values(score, row[score.name], request)
        rollouts.append(Rollout(row, is_cut_off(setup.pair.tokenizer, ids, request, setup.pair.eos_ids)))
    return rollouts


def _score_texts(
    setup: Setup, scores: Sequence[Score], texts: Sequence[tuple[Request, Sequence[int]]]
) -> list[dict[str, NDArray[np.float32]]]:
    """Of each text every score of every token, `[tokens]` by name, in nats."""
    requests, written = zip(*texts, strict=True)
    prompts, labels = [request.prompt for request in requests], [request.label for request in requests]
    host, donor = setup.roles

    def read(host_logits: Tensor, donor_logits: Tensor, tokens: Tensor) -> Tensor:
        reading = PairReading(host_logits, donor_logits, tokens)
        return torch.stack([score.of(reading) for score in scores], -1)

    aligned = read_aligned(setup.pair, setup.roles, prompts, written, labels)
    blocks = [by_positions(read, logits[host], logits[donor], tokens).cpu() for tokens, logits in aligned]
    names = [score.name for score in scores]
    rows = (row[-len(tokens) :].T.numpy().copy() for row, tokens in zip(torch.cat(blocks, dim=1), written, strict=True))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _check_values(score: Score, values: NDArray[np.float32], request: Request) -> None:
    """Raise where no thresholds can be read off these scores: PluginError for a plug-in's, CalibrationError for ours."""
    unsound = values[~np.isfinite(values) | ((values < 0) & (not score.signed))]
    if len(unsound) and score.source.digest is None:
        raise CalibrationError(f"{request.label}: {score.name} is {unsound[0]}; load both models with --dtype float32")
    if len(unsound):
        problem = f"{score.where} returned {unsound[0]} for {request.label}"
        raise PluginError(f"{problem}; scores are finite, and at least 0 unless they are registered with signed=True")


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """What rollouts realized, with the standard error of the rate over prompts."""

    takeovers: int
    tokens: int
    error: float
    effective: float = 2.0  # so many prompts of one length tell as much; of what is kept without it, little is known
    largest: float = 0.0  # share of the tokens that one prompt has

    @classmethod
    def of(cls, counts: Sequence[tuple[int, int]]) -> Self:
        """Of `(takeovers, tokens)` of each prompt. The rate is a ratio of sums, so its error is that of the residuals."""
        taken, tokens = np.array(counts).T
        residuals = taken - taken.sum() / tokens.sum() * tokens
        error = float(np.sqrt(len(counts)) * residuals.std() / tokens.sum())
        effective, largest = tokens.sum() ** 2 / (tokens**2).sum(), tokens.max() / tokens.sum()  # Kish
        return cls(int(taken.sum()), int(tokens.sum()), error, float(effective), float(largest))

    @property
    def rate(self) -> float:
        return self.takeovers / self.tokens

    def find_reach(self) -> float:
        """How far a 95 % interval of the rate reaches to either side, by Student's t over the effective prompts."""
        prompts = self.effective
        if self.takeovers in (0, self.tokens):
            return min(3 / prompts, 1.0)  # the rule of three
        return self.error * math.sqrt(prompts / (prompts - 1)) * float(stdtrit(prompts - 1, 0.975)) if prompts > 1 else 1.0


@dataclass(frozen=True, slots=True)
class HeldOutRollouts:
    """Rollouts of held-out prompts by a method at any value of its budget parameter."""

    setup: Setup
    requests: Sequence[Request]
    calibration: Calibration
    method: Method

    @property
    def name(self) -> str:
        """A key of all that a measured rate depends on, without the value."""
        return digest_of([[request.prompt for request in self.requests], self.method.settings])

    def measure(self, value: float, label: str) -> MeasuredRate:
        """The rate at this value of the budget parameter."""
        policy = self.method.at(value, self.calibration)
        shown = f"{self.method.settings.get('score') or policy.name}, {self.method.budget_parameter.name}={value:.4g}, {label}"
        with Progress(len(self.requests), quiet=False, label=shown, unit="rollout", bars=self.setup.bars) as bar:
            written = self.setup.write(self.requests, policy, bar)
            return MeasuredRate.of([(generation.takeovers, len(generation.tokens)) for _, generation in written])


def solve(rollouts: HeldOutRollouts, rates: Sequence[float], memory: Rollouts) -> Iterator[Target]:
    """For each rate the budget parameter's value whose rollouts come near it: along the replay, by secants and halvings.

    What is measured for one rate is where the search for the next one starts. The result may be off where no value gives the
    rate, as in a mass of equal scores; the caller compares `realized_rate` with what was asked.
    """
    parameter, settings = rollouts.method.budget_parameter, rollouts.method.settings
    # The search is in x, in which the rate rises: the parameter's logarithm, negated where the rate falls.
    sign = 1 if parameter.rising else -1
    bounds = [sign * math.log(bound) for bound in (max(parameter.low, _LOW), min(parameter.high, _HIGH))]
    lowest, highest = min(bounds), max(bounds)
    measured, expect = dict[float, MeasuredRate](), _read_replay(rollouts)
    for rate in rates:
        for step in range(MOST):
            x = _choose_next(measured, rate, step, expect) if measured else expect(rate)
            if x is None or (x := min(max(x, lowest), highest)) in measured:
                break
            measured[x] = _measure(rollouts, math.exp(sign * x), f"{step + 1} of at most {MOST}", memory)
        best = min(measured, key=lambda tried: (abs(measured[tried].rate - rate), tried))
        found = measured[best]
        yield Target(rate, settings, parameter.name, math.exp(sign * best), found.rate, len(rollouts.requests), found.tokens)


def check_target(target: Target, rollouts: HeldOutRollouts, memory: Rollouts) -> Target:
    """The target with the rate that its value realizes on these prompts, on which it was not solved."""
    found, count = _measure(rollouts, target.value, "on the other half", memory), len(rollouts.requests)
    if found.largest > _MOST_OF_ONE and count > 2 / _MOST_OF_ONE:
        text = "%s at %g%%: one text holds %.0f%% of the tokens; the interval may be too narrow, so measure with more prompts"
        logger.warning(text, target.name, 100 * target.target_rate, 100 * found.largest)
    reach = found.find_reach()
    low, high = max(found.rate - reach, 0.0), min(found.rate + reach, 1.0)
    counts: dict[str, Any] = {"realized_rate": found.rate, "prompts": count, "tokens": found.tokens, "low": low, "high": high}
    return replace(target, **counts, solved_rate=target.realized_rate)


def _measure(rollouts: HeldOutRollouts, value: float, label: str, memory: Rollouts) -> MeasuredRate:
    """What these rollouts realize at this value, measured once."""
    name = f"{rollouts.name} {value!r}"
    if name not in memory.results:
        memory.remember(name, astuple(rollouts.measure(value, label)))
    return MeasuredRate(*memory.results[name])


def _choose_next(measured: dict[float, MeasuredRate], rate: float, step: int, expect: Callable[[float], float]) -> float | None:
    """Where to measure next; None where it is near enough, or there is nothing left to try."""
    # Nearer than its error, more measurements of the same prompts would only fit their noise.
    if any(abs(found.rate - rate) <= min(max(_NEAR, found.error), TOLERANCE) for found in measured.values()):
        return None
    rates = {x: found.rate for x, found in measured.items()}
    low = max((x for x in rates if rates[x] < rate), default=None)
    high = min((x for x in rates if rates[x] >= rate and (low is None or x > low)), default=None)
    if low is not None and high is not None:
        if high - low < 0.002:
            return None
        share = (rate - rates[low]) / (rates[high] - rates[low]) if step % 3 != 2 else 0.5
        return low + (high - low) * min(max(share, 0.1), 0.9)
    # Bounded on one side only: as far as the replay moves for this change, at least a tenth, each time twice as far.
    x = low if low is not None else high
    assert x is not None
    further, reach = x + expect(rate) - expect(max(rates[x], rate / 8)), 0.1 * 2.0**step
    return max(further, x + reach) if low is not None else min(further, x - reach)


def _read_replay(rollouts: HeldOutRollouts) -> Callable[[float], float]:
    """By share of takeovers the x that gives it: of a gate by the calibration's own rollouts; a share of tokens is its own."""
    method, parameter = rollouts.method, rollouts.method.budget_parameter
    if parameter.name == SPIKE_RATIO:
        table = rollouts.calibration.score(method.settings["score"]).table
        rising = sorted({share: row["rho"] for row in table if (share := row[f"share_{method.kappa_rule}"]) > 0}.items())
        if rising:
            shares, values = np.log(np.array(rising)).T
            return lambda share: float(np.interp(math.log(share), shares, values))
    if math.isfinite(parameter.high) and parameter.rising:
        return math.log
    return lambda share: 1.5 * math.log(share / 0.05)
