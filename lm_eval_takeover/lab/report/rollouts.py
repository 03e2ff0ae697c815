"""Chooses the rollouts that fit into a report, and packs them.

A packed rollout is base64 of a zlib stream, which a browser opens by itself (`DecompressionStream("deflate")`):

    u32                    bytes of the header, little-endian
    header                 JSON: `text`, a piece per token; `taken`, positions that the donor wrote; `same`, those of them
                           where the host would have written that, too; `host`, by position what it would have instead
    4 columns of u16       the low bytes of all tokens, then the high bytes, 65535 for unknown: score, and minus the
                           log-probability under host and donor, in thousandths of a nat (at most 65.534); rank under the host
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.lab.measures.tokens import SampleTokens, make_sample, read_scored_samples
from lm_eval_takeover.lab.report.inputs import Analysis
from lm_eval_takeover.lab.score_files import column_of, list_score_files, read_header
from lm_eval_takeover.pair.pieces import Pieces
from lm_eval_takeover.runs.run_reader import Answered, RunReader

UNKNOWN = 0xFFFF
_TRACED = ("token_id", "chosen_from", "score", "host_logprob", "donor_logprob", "donor_rank", "host_token_id")
_CHUNK = 128  # groups that are packed before it is seen whether there is room for more

Pick = tuple[str, Answered]  # run, sample


def list_picks(analysis: Analysis) -> list[list[Pick]]:
    """Groups of samples to embed, the most telling first: one sample of one problem in all runs.

    Problems come first whose samples the compared run has right more often than the base, or less. A problem's next sample comes
    after every other problem had as many; of a problem, samples that base and compared run judge differently come first.
    """
    beside, rounds = (analysis.base, analysis.compared), list[list[list[Pick]]]()
    by_run = [analysis.samples.get(name or "", {}) for name in beside]
    right = [{key: sum(one.correct for one in samples) for key, samples in problems.items()} for problems in by_run]
    changes = {key: abs(right[1][key] - right[0][key]) for key in right[0].keys() & right[1].keys()}
    for key in sorted(analysis.problems, key=lambda key: -changes.get(key, 0)):
        by_number: dict[int, dict[str, Answered]] = {}
        for name, problems in analysis.samples.items():
            for sample in problems.get(key, []):
                by_number.setdefault(sample.sample, {})[name] = sample
        verdicts = {n: {one.correct for name, one in by_number[n].items() if name in beside} for n in by_number}
        for place, number in enumerate(sorted(by_number, key=lambda n: (len(verdicts[n]) < 2, n))):  # what changed is first
            rounds.extend([] for _ in range(place + 1 - len(rounds)))
            rounds[place].append(list(by_number[number].items()))
    return [group for groups in rounds for group in groups]


def pack_picks(
    analysis: Analysis, groups: Sequence[Sequence[Pick]], pieces: Mapping[str, Pieces], score: str, room: int
) -> dict[tuple[str, bytes], str]:
    """Packed rollouts by run and key of the text: of the first groups that fit into `room` bytes, read in chunks."""
    packed: dict[tuple[str, bytes], str] = {}
    for start in range(0, len(groups), _CHUNK):
        chunk = groups[start : start + _CHUNK]
        rollouts = _pack_chunk(analysis, chunk, pieces, score)
        for group in chunk:
            keys = [(name, sample.stored.key) for name, sample in group]
            new = {key: rollouts[key] for key in keys if key in rollouts and key not in packed}
            needed = sum(map(len, new.values()))
            if needed > room:
                return packed
            packed |= new
            room -= needed
    return packed


def _pack_chunk(
    analysis: Analysis, chunk: Sequence[Sequence[Pick]], pieces: Mapping[str, Pieces], score: str
) -> dict[tuple[str, bytes], str]:
    by_run: dict[str, dict[bytes, Answered]] = {}
    for group in chunk:
        for name, sample in group:
            by_run.setdefault(name, {})[sample.stored.key] = sample
    packed = {}
    for name, samples in by_run.items():
        run = analysis.runs[name]
        scored = read_scores(run, samples, score) if run.written_by == "base" else {}
        for sample, table in run.read_traces(_TRACED, list(samples.values())):
            tokens = make_sample(sample.stored_name, table, _TRACED)
            packed[name, sample.stored.key] = pack(run, tokens, scored.get(sample.stored.key), score, pieces[name])
    return packed


def read_scores(run: RunReader, samples: Mapping[bytes, Answered], score: str) -> dict[bytes, SampleTokens]:
    """By key what `lm-eval-takeover score` found of these texts: `score` and both models' probabilities."""
    by_name = {sample.stored_name: key for key, sample in samples.items()}
    headers = {path: read_header(path) for path in list_score_files(run.folder)}
    files = [path for path, (header, keys) in headers.items() if score in header.scores and keys & samples.keys()]
    found = read_scored_samples(files, [score], ["base_logprob", "guide_logprob", "base_rank"])
    return {by_name[tokens.name]: tokens for tokens in found if tokens.name in by_name}


def pack(run: RunReader, tokens: SampleTokens, scored: SampleTokens | None, score: str, pieces: Pieces) -> str:
    """One rollout, as this module's docstring has it; `scored` is what was measured on it afterwards, by this score."""
    columns = tokens.columns
    measured = [columns[name] for name in ("score", "host_logprob", "donor_logprob", "donor_rank")]
    if scored is not None:
        measured = [scored.columns[name] for name in (column_of(score), "base_logprob", "guide_logprob", "base_rank")]
    taken = np.flatnonzero(columns["chosen_from"] == run.donor) if run.written_by is None else np.empty(0, dtype=int)
    ids, hosts = columns["token_id"], columns["host_token_id"]
    replaced = {int(i): pieces.name(int(hosts[i])) for i in taken if hosts[i] >= 0 and hosts[i] != ids[i]}
    same = [int(i) for i in taken if hosts[i] == ids[i]]
    header = {"text": pieces.split(ids.tolist()), "taken": taken.tolist(), "host": replaced, "same": same}
    text = json.dumps(header, separators=(",", ":")).encode()
    values, host, donor, rank = measured
    planes = [*(_pack(nats, 1000) for nats in (values, -host, -donor)), _pack(np.where(rank < 0, np.nan, rank), 1)]
    return base64.b64encode(zlib.compress(struct.pack("<I", len(text)) + text + b"".join(planes), 9)).decode()


def _pack(values: NDArray[Any], scale: int) -> bytes:
    values = np.asarray(values, dtype=np.float64)
    rounded = np.round(np.nan_to_num(values * scale, posinf=UNKNOWN)).clip(0, UNKNOWN - 1)
    packed = np.where(np.isnan(values), UNKNOWN, rounded).astype("<u2").view(np.uint8).reshape(-1, 2)
    return packed.T.tobytes()
