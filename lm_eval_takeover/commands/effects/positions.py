"""Which positions are asked: takeovers whose token the host would not have drawn, and candidates for controls.

The choice is even over scores and over places in the text: candidates are put in order by quarter of their score, then by place,
and every n-th is taken from a random start. So each candidate is as likely as any other, and means need no weights.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lm_eval_takeover.analysis.effects import CONTROL, TAKEOVER
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.runs.run_reader import Answered, RunReader

_COLUMNS = ("token_id", "chosen_from", "score", "donor_logprob", "host_token_id")
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a stored text, and the two tokens that host and donor draw there.

    `begun` are the tokens before it, `scores` theirs and its own, in nats (NaN under a policy without a score). `donor_token` is
    None where the donor has not been asked yet.
    """

    kind: str
    one: Answered
    prompt: tuple[int, ...]
    begun: tuple[int, ...]
    scores: tuple[float, ...]
    length: int  # of the text, in tokens
    host_token: int
    donor_token: int | None

    @property
    def place(self) -> int:
        return len(self.begun)

    @property
    def tokens(self) -> tuple[int, int]:
        """The host's and the donor's."""
        assert self.donor_token is not None
        return self.host_token, self.donor_token

    @property
    def label(self) -> str:
        return f"task {self.one.task}, doc {self.one.doc_id}, sample {self.one.sample}, token {self.place}"


def choose_takeovers(run: RunReader, count: int, seed: int) -> tuple[list[Position], int]:
    """`(at most so many takeovers, how many there are)`. Raises ArgumentError where there is none."""
    found = _list_candidates(run, takeovers=True)
    if not len(found):
        raise ArgumentError(
            f"run_dir='{run.folder}': no takeover wrote another token than the {run.host} would have drawn there; effects need "
            f"a guided run whose traces say so (policies that ask both models at every token)"
        )
    return _read_positions(run, found[choose_evenly(found["score"], found["place"], count, seed)]), len(found)


def list_control_candidates(
    run: RunReader, samplings: dict[str, Sampling], count: int, seed: int
) -> Iterator[list[Position]]:
    """Other positions of the same texts at random, in groups of so many, where the donor may draw another token.

    It cannot where the token that stands there fills the donor's nucleus (temperature up to 1, top-p below 1).
    """
    found = _list_candidates(run, takeovers=False)
    limits = {
        task: math.log(one.top_p) if one.temperature <= 1 and one.top_p < 1 else 0.0 for task, one in samplings.items()
    }
    tasks = [one.task for one in run.stored_samples()]
    limit = np.array([limits[task] for task in tasks])
    open_ones = found[~(found["donor_logprob"] >= limit[found["text"]])] if len(found) else found
    order = np.random.default_rng([seed, 1]).permutation(len(open_ones))
    for start in range(0, len(order), count):
        yield _read_positions(run, open_ones[order[start : start + count]])


def choose_evenly(scores: NDArray[np.float32], places: NDArray[np.float32], count: int, seed: int) -> NDArray[np.int64]:
    """Indices of `count` candidates, even over quarters of the scores and over places within them; ascending."""
    if count >= len(scores):
        return np.arange(len(scores))
    ranks = np.empty(len(scores))
    # By hundredths of a nat: the last bits of a score, which depend on the block lengths, choose no other positions.
    ranks[np.argsort(scores.round(2), kind="stable")] = np.arange(len(scores))
    order = np.lexsort((places, ranks * _QUARTERS // len(scores)))
    step = len(scores) / count
    start = np.random.default_rng([seed, 0]).random() * step
    return np.sort(order[np.minimum((start + step * np.arange(count)).astype(int), len(scores) - 1)])


_CANDIDATE = np.dtype([("text", "i4"), ("token", "i4"), ("score", "f4"), ("place", "f4"), ("donor_logprob", "f4")])


def _list_candidates(run: RunReader, *, takeovers: bool) -> NDArray[Any]:
    """Takeovers by another token than the host's, or all tokens of the host's own; in the order of the texts."""
    texts = {one.stored.key: number for number, one in enumerate(run.stored_samples())}
    donor, parts = run.donor, []
    for one, table in run.read_traces(_COLUMNS):
        token, host, score, log_p = (
            table[name].to_numpy() for name in ("token_id", "host_token_id", "score", "donor_logprob")
        )
        taken = pc.equal(table["chosen_from"].cast(pa.string()), donor).to_numpy()
        places = np.flatnonzero(taken & ~np.isnan(host.astype(float)) & (host != token) if takeovers else ~taken)
        part = np.zeros(len(places), _CANDIDATE)
        part["text"], part["token"], part["place"] = texts[one.stored.key], places, places / len(token)
        part["score"], part["donor_logprob"] = score[places], log_p[places]
        parts.append(part)
    return np.concatenate(parts) if parts else np.zeros(0, _CANDIDATE)


def _read_positions(run: RunReader, candidates: NDArray[Any]) -> list[Position]:
    """These candidates with the tokens before them, in the order given."""
    samples = run.stored_samples()
    wanted: dict[bytes, list[int]] = {}
    for number, candidate in enumerate(candidates):
        wanted.setdefault(samples[candidate["text"]].stored.key, []).append(number)
    found: dict[int, Position] = {}
    for one, table in run.read_traces(_COLUMNS, [samples[text] for text in sorted(set(candidates["text"].tolist()))]):
        prompt = tuple(run.find_prompt(one)["prompt_ids"])
        tokens, scores = table["token_id"].to_pylist(), table["score"].to_pylist()
        for number in wanted[one.stored.key]:
            place = int(candidates[number]["token"])
            host = table["host_token_id"][place].as_py() if table["chosen_from"][place].as_py() == run.donor else None
            found[number] = Position(
                CONTROL if host is None else TAKEOVER,
                one,
                prompt,
                tuple(tokens[:place]),
                tuple(scores[: place + 1]),
                len(tokens),
                tokens[place] if host is None else host,
                None if host is None else tokens[place],
            )
    return [found[number] for number in range(len(candidates))]


LAST = 2**16 - 1  # a continuation that none has


def draw_numbers(position: Position, continuation: int) -> int:
    """The number of a continuation in the place of a sample's: apart from those of samples and of other positions."""
    return ((position.one.sample + 1) << 40) | (position.place << 16) | continuation
