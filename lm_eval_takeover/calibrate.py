"""Measuring a calibration: host rollouts on held-out prompts, then all scores of their tokens in one pass per model."""

import hashlib
import importlib.metadata
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lm_eval_takeover.calibration import Calibration, ScoreCalibration
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.generation import Request
from lm_eval_takeover.lockstep import generate
from lm_eval_takeover.pair import Pair
from lm_eval_takeover.policy import Policy
from lm_eval_takeover.sampling import Sampling
from lm_eval_takeover.scores import SCORES, disagreement
from lm_eval_takeover.teacher_forcing import logit_blocks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a calibration and where they came from."""

    texts: tuple[str, ...]
    source: dict[str, Any]


def read_prompts(
    source: str, *, split: str = "train", field: str | None = None, count: int = 500, seed: int = 0
) -> Prompts:
    """`count` prompts drawn with `seed` from a JSONL file or from the hub data set `id[:config]`."""
    path = Path(source)
    if path.exists():
        rows = _read_jsonl(path)
        name, field = path.name, field or "prompt"
    else:
        import datasets

        name, _, config = source.partition(":")
        try:
            rows = datasets.load_dataset(name, config or None, split=split)
        except Exception as error:  # the hub, the network and the loader each raise their own kinds
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ArgumentError(
                f"--prompts '{source}' is no file, and as a hub data set 'id[:config]' it cannot be loaded: {reason}"
            ) from error
        field = field or ("prompt" if "prompt" in rows.column_names else "question")
        name = source
    if not len(rows):
        raise ArgumentError(f"--prompts '{source}' holds no prompt; expected one JSON object with '{field}' per line")
    indices = sorted(random.Random(seed).sample(range(len(rows)), min(count, len(rows))))
    texts = []
    for index in indices:
        text = rows[index].get(field)
        if not isinstance(text, str) or not text:
            raise ArgumentError(
                f"--prompts '{source}': row {index + 1} has no text in field '{field}' "
                f"(its fields: {', '.join(map(str, rows[index]))}); name the field with --field"
            )
        texts.append(text)
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    described = {"dataset": name, "split": None if path.exists() else split, "field": field, "seed": seed}
    return Prompts(tuple(texts), described | {"indices": indices, "digest": f"sha256:{digest}"})


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--prompts '{path}' cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ArgumentError(f"--prompts '{path}': line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ArgumentError(f"--prompts '{path}': line {number} is not a JSON object")
            rows.append(row)
    return rows


@torch.inference_mode()
def calibrate(
    pair: Pair,
    prompts: Prompts,
    *,
    direction: str = "forward",
    sampling: Sampling | None = None,
    max_gen_toks: int = 4096,
    seed: int = 0,
    batch_size: int = 64,
    progress: bool = True,
) -> Calibration:
    """Collect ce, rkl, entropy and js on one rollout of the host per prompt, and read tau and kappa off them."""
    sampling = sampling or Sampling(temperature=0.6, top_p=0.95)
    host, donor = ("base", "guide") if direction == "forward" else ("guide", "base")
    requests = _requests(pair, prompts, sampling, max_gen_toks)
    for role in (host, donor):
        _ = pair.member(role).model  # loaded before the bars, whose speed it would spoil
    rollouts: dict[int, tuple[int, ...]] = {}
    with tqdm(total=len(requests), desc="Calibrating: rollouts", unit="rollout", disable=not progress) as bar:
        written = generate(pair, Policy(host), requests, seed=seed, batch_size=batch_size, as_pair=True)
        for i, generation in written:
            rollouts[i] = tuple(generation.tokens)
            bar.update()
    collected: dict[str, list[torch.Tensor]] = {score: [] for score in SCORES}
    order = sorted(rollouts, key=lambda i: (-len(requests[i].prompt) - len(rollouts[i]), i))
    with tqdm(total=len(requests), desc="Calibrating: scores", unit="rollout", disable=not progress) as bar:
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            texts = (
                [requests[i].prompt for i in chosen],
                [rollouts[i] for i in chosen],
                [requests[i].label for i in chosen],
            )
            read = (logit_blocks(pair.member(role), pair.vocabulary.size, *texts) for role in (host, donor))
            blocks: dict[str, list[torch.Tensor]] = {score: [] for score in SCORES}
            for host_logits, donor_logits in zip(*read, strict=True):
                for score in SCORES:
                    blocks[score].append(disagreement(score, host_logits, donor_logits.to(host_logits.device)).cpu())
            for score in SCORES:
                whole = torch.cat(blocks[score], dim=1)
                collected[score] += [row[-len(rollouts[i]) :] for row, i in zip(whole, chosen, strict=True)]
            bar.update(len(chosen))
    assert pair.base is not None and pair.guide is not None
    return Calibration(
        base=pair.base.id,
        guide=pair.guide.id,
        vocabulary={"size": pair.vocabulary.size, "digest": pair.vocabulary.digest},
        direction=direction,
        prompts=prompts.source,
        decoding={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_gen_toks": max_gen_toks,
            "seed": seed,
        },
        rollouts=len(rollouts),
        tokens=sum(map(len, rollouts.values())),
        library_versions={
            name: importlib.metadata.version(name) for name in ("lm-eval-takeover", "torch", "transformers")
        },
        scores={score: ScoreCalibration.of(torch.cat(values).double().numpy()) for score, values in collected.items()},
    )


def _requests(pair: Pair, prompts: Prompts, sampling: Sampling, max_gen_toks: int) -> list[Request]:
    limit = pair.max_length or 2**31
    requests = []
    for number, text in enumerate(prompts.texts):
        ids = tuple(pair.encode(text))
        room = limit - len(ids)
        if ids and room >= 1:
            label = f"calibration prompt {prompts.source['indices'][number] + 1}"
            requests.append(Request(ids, 0, min(max_gen_toks, room), sampling, label=label))
    if not requests:
        raise ArgumentError(
            f"--prompts: all {len(prompts.texts)} prompts are empty or longer than the context of {limit} tokens"
        )
    left_out = len(prompts.texts) - len(requests)
    if left_out:
        logger.warning("%d prompts are empty or longer than the context of %d tokens; left out", left_out, limit)
    return requests


def table(calibration: Calibration, scores: Sequence[str] = SCORES) -> str:
    """tau and both kappas by score and rho, as Markdown."""
    lines = [
        "|score|mean (nats)|spike ratio|tau (nats)|kappa threshold_to_mean|kappa tail_to_mean|",
        "|-----|----------:|----------:|---------:|----------------------:|-----------------:|",
    ]
    for score in scores:
        held = calibration.scores[score]
        for row in held.table:
            lines.append(
                f"|{score}|{held.mean:.4f}|{row['rho']:g}|{row['tau']:.4f}|"
                f"{row['kappa_threshold_to_mean']:.3f}|{row['kappa_tail_to_mean']:.3f}|"
            )
    return "\n".join(lines)
