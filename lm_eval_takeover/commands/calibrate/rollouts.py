"""Measuring a calibration: host rollouts on held-out prompts, all scores of their tokens in one pass per model, and replay.

Prompts are done in groups of one batch; the scores of a finished group are on disk before the next one starts
(`score_parts`), so an interrupted calibration goes on where it was. At the end all scores are in memory, four bytes each: 33 MB
a score for 500 rollouts of 16,384 tokens.
"""

import contextlib
import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lm_eval_takeover.calibration.thresholds import (
    DEFAULT_RHO,
    KAPPA_RULES,
    TOLERANCE,
    Calibration,
    ScoreCalibration,
    Target,
)
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands.calibrate.rate_solver import HeldOutRollouts, solve
from lm_eval_takeover.commands.calibrate.score_parts import ScoreParts, Trajectory
from lm_eval_takeover.commands.calibrate.setup import Setup
from lm_eval_takeover.decoding.gate_step import by_positions
from lm_eval_takeover.decoding.stop_strings import is_cut_off
from lm_eval_takeover.decoding.teacher_forcing import read_aligned
from lm_eval_takeover.errors import ArgumentError, CalibrationError, PluginError, run_in_batches
from lm_eval_takeover.method.gate import Gate, fires_along
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.reading import PairReading
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.loading import load_weights
from lm_eval_takeover.runs.progress import Progress

logger = logging.getLogger(__name__)

Text = TypeVar("Text")
Rows = dict[str, list[Trajectory]]  # by score


@dataclass(frozen=True, slots=True)
class Wanted:
    """A method, and the realized rates to solve its budget parameter for."""

    method: Method
    rates: Sequence[float]


@dataclass(slots=True)
class Work:
    """The work of a calibration in this process: tokens rolled out, and seconds, scores included."""

    tokens: int = 0
    seconds: float = 0.0
    reused: int = 0  # rollouts of an earlier, interrupted call


def calibrate(
    setup: Setup,
    *,
    wanted: Sequence[Wanted] = (),
    known: Calibration | None = None,
    parts: ScoreParts | None = None,
    work: Work | None = None,
) -> Calibration:
    """Collect every score of `parts` on one rollout of the host per prompt, read tau and kappa off them, and solve for rates.

    What is finished stays in `parts` (`Setup.open_parts`), so that the same call goes on after a kill. `work` is filled with what
    this call did. If no value of a budget parameter realizes a rate, the nearest is taken. The scores of `known`, a calibration
    with this setup, are taken over, and only the rates that it lacks are solved for. Raises ArgumentError for prompts that cannot
    be used.
    """
    if setup.pair.member("base").id.same_model(setup.pair.member("guide").id):
        logger.warning("base and guide are the same model: every ce equals the entropy, and rkl and js are 0")
    if wanted and not setup.prompts.held_out:
        raise ArgumentError(f"--target_rate needs held-out prompts: give 5 or more, not {len(setup.prompts.texts)}")
    with contextlib.ExitStack() as stack:
        if parts is None:
            parts = ScoreParts(Path(stack.enter_context(tempfile.TemporaryDirectory())), list(registered))
        calibration = known or _measure_thresholds(setup, parts, work or Work())
        return _solve_rates(setup, calibration, wanted, parts) if wanted else calibration


@torch.inference_mode()
def _measure_thresholds(setup: Setup, parts: ScoreParts, work: Work) -> Calibration:
    _collect_scores(setup, parts, work)
    scores, rollouts, tokens = _read_calibrations(parts, setup.window)
    if parts.cut:  # thresholds lack the scores of the tokens that were cut
        logger.warning(
            "%d of %d rollouts (%.1f%%) did not end within --max_gen_toks %d or the context, and were cut; %s",
            parts.cut, rollouts, 100 * parts.cut / rollouts, setup.max_gen_toks, _describe_cut(parts, scores),
        )  # fmt: skip
    counts: dict[str, Any] = {"rollouts": rollouts, "tokens": tokens, "cut": parts.cut, "window": setup.window}
    return Calibration(**setup.describe(), **counts, scores=scores)


@torch.inference_mode()
def _solve_rates(setup: Setup, calibration: Calibration, wanted: Sequence[Wanted], parts: ScoreParts) -> Calibration:
    """The calibration with the targets that it lacks, measured on the held-out prompts."""
    prompts = setup.prompts
    requests = setup.make_requests(prompts.held_out, prompts.source["held_out_indices"])
    targets = list(calibration.targets)
    for method in wanted:
        missing = [rate for rate in method.rates if not any(t.answers(rate, method.method.settings) for t in targets)]
        targets += solve(HeldOutRollouts(setup, requests, calibration, method.method), missing, parts)
    return replace(calibration, targets=tuple(targets))


def describe_unsolved(target: Target) -> str:
    return (
        f"no {target.budget_parameter} of {target.name} realizes {target.target_rate:.1%} ± {TOLERANCE:.1%} "
        f"on the {target.prompts} held-out prompts; the nearest one, {target.value:.4g}, realizes {target.realized_rate:.2%}"
    )


def _collect_scores(setup: Setup, parts: ScoreParts, work: Work) -> None:
    """Roll out and score every prompt that is not in `parts` yet."""
    pair, size = setup.pair, setup.batch_size
    requests = setup.make_requests(setup.prompts.texts, setup.prompts.source["indices"])
    load_weights(pair, setup.roles)  # before the bar, whose speed it would spoil
    # Groups of nearly one prompt length. They follow from the requests alone: an interrupted run has the same float32 sums.
    order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), i))
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    work.reused = len(parts.done)
    started = time.perf_counter()
    with Progress(len(requests), work.reused, quiet=not setup.progress, label="Calibrating", unit="rollout") as bar:
        for group in groups:
            todo = [i for i in group if i not in parts.done]
            if not todo:
                continue
            pending = [requests[i] for i in todo]
            rollouts, scores = _roll_out(setup, pending, parts, bar)
            cut = [is_cut_off(pair.tokenizer, ids, r, pair.eos_ids) for r, ids in zip(pending, rollouts, strict=True)]
            parts.add(todo, scores, cut)
            work.tokens += sum(map(len, rollouts))
            work.seconds = time.perf_counter() - started


def _roll_out(setup: Setup, requests: Sequence[Request], parts: ScoreParts, bar: Progress) -> tuple[list[list[int]], Rows]:
    """The host's rollouts and their scores, which come in vLLM with the pass that writes."""
    if setup.backend is not None:
        written_there = setup.backend.roll_out(requests, seed=setup.seed, count_tokens=bar.count_tokens)
        rolled = sorted(_count_finished(written_there, bar), key=lambda text: text[0])
        rollouts = [tokens for _, tokens, _ in rolled]
        rows = {score.name: [scores[score.name] for _, _, scores in rolled] for score in parts.scores}
    else:
        written = dict(_count_finished(setup.write(requests, ALONE[setup.roles[0]](), bar), bar))
        rollouts = [written[place].tokens for place in range(len(requests))]
        rows = defaultdict(list)
        texts = list(zip(requests, rollouts, strict=True))
        for _, scored in run_in_batches(partial(_score_rollouts, setup, parts.scores), texts, len(texts)):
            for name, values in scored.items():
                rows[name] += values
    for score in parts.scores:
        _check_values(score, rows[score.name], requests)
    return rollouts, dict(rows)


def _count_finished(texts: Iterable[Text], bar: Progress) -> Iterator[Text]:
    for text in texts:
        bar.finish()
        yield text


def _score_rollouts(setup: Setup, scores: Sequence[Score], texts: Sequence[tuple[Request, Sequence[int]]]) -> Rows:
    """Every score of every token of these texts: by name one array `[tokens]` per rollout, in nats."""
    requests, rollouts = zip(*texts, strict=True)
    prompts, labels = [request.prompt for request in requests], [request.label for request in requests]
    host, donor = setup.roles

    def read(host_logits: Tensor, donor_logits: Tensor, tokens: Tensor) -> Tensor:
        reading = PairReading(host_logits, donor_logits, tokens)
        return torch.stack([score.of(reading) for score in scores], -1)

    aligned = read_aligned(setup.pair, setup.roles, prompts, rollouts, labels)
    blocks = [by_positions(read, logits[host], logits[donor], tokens).cpu() for tokens, logits in aligned]
    whole = dict(zip((score.name for score in scores), torch.cat(blocks, dim=1).unbind(-1), strict=True))
    lengths = list(map(len, rollouts))
    return {name: [row[-n:].numpy() for row, n in zip(values, lengths, strict=True)] for name, values in whole.items()}


def _check_values(score: Score, rows: Sequence[Trajectory], requests: Sequence[Request]) -> None:
    """Raise where no thresholds can be read off these scores: PluginError for a plug-in's, CalibrationError for ours."""
    for values, request in zip(rows, requests, strict=True):
        if not np.isfinite(values).all():
            value = values[~np.isfinite(values)][0]
            if score.source.digest is not None:
                raise PluginError(f"{score.where} returned {value} for {request.label}")
            raise CalibrationError(f"{request.label}: {score.name} is {value}; load both models with --dtype float32")
        if (values < 0).any() and not score.signed:
            problem = f"{score.where} returned {values.min()} for {request.label}"
            raise PluginError(f"{problem}; scores are at least 0, or registered with signed=True")


def _read_calibrations(parts: ScoreParts, window: int) -> tuple[dict[str, ScoreCalibration], int, int]:
    """`(by score its calibration, with the shares of takeovers; rollouts; tokens)`."""
    rows: Rows = {score.name: [] for score in parts.scores}
    for part in parts.read():
        for name, of_part in rows.items():
            of_part.extend(part[name])
    scores = {name: ScoreCalibration.of(np.concatenate(r), signed=registered.get(name).signed) for name, r in rows.items()}
    for name in (name for name, calibration in scores.items() if calibration.mean == 0):
        logger.warning("all %s scores are 0: its gate fires on every score above 0", name)
    shares = _replay_gates(parts, scores, window)
    scores = {name: calibration.with_shares(shares[name]) for name, calibration in scores.items()}
    for name, source in ((score.name, score.source) for score in parts.scores):
        if source.digest is not None:
            scores[name] = replace(scores[name], plugin={"source": source.name, "digest": source.digest})
    first = next(iter(rows.values()))
    return scores, len(first), sum(map(len, first))


def _describe_cut(parts: ScoreParts, scores: Mapping[str, ScoreCalibration]) -> str:
    """How the scores of the rollouts that were cut differ from those of all: in texts that loop they are low."""
    name, score = next(iter(scores.items()))
    cut = np.concatenate([row for part in parts.read(cut=True) for row in part[name]])
    above = (cut > score.threshold(DEFAULT_RHO).tau).mean()
    means = f"their mean {name} is {cut.mean():.3g} nats, that of all rollouts {score.mean:.3g}"
    return f"{means}; {above:.1%} of their tokens are above the tau of spike_ratio={DEFAULT_RHO}"


def _replay_gates(
    parts: ScoreParts, scores: dict[str, ScoreCalibration], window: int
) -> dict[str, dict[tuple[float, str], float]]:
    """By score the share of tokens at which the whole gate fires, the window test included, by (rho, kappa rule).

    On the rollouts as they are: what would follow from a takeover is not known, so a run's realized rate differs.
    """
    gates = {
        score: {
            (row["rho"], rule): Gate(row["tau"], row[f"kappa_{rule}"], window) for row in held.table for rule in KAPPA_RULES
        }
        for score, held in scores.items()
    }
    fired: dict[str, dict[tuple[float, str], int]] = {score: dict.fromkeys(gates[score], 0) for score in scores}
    tokens = 0
    for part in parts.read():
        for score, rows in part.items():
            # Padding exceeds no threshold.
            tensors = [torch.from_numpy(row) for row in rows]
            padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=-torch.inf)
            for key, gate in gates[score].items():
                fired[score][key] += int(fires_along(gate, padded).sum())
        tokens += sum(map(len, next(iter(part.values()))))
    return {score: {key: count / tokens for key, count in fired[score].items()} for score in scores}
