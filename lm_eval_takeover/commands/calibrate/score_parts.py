"""Scores of finished rollouts on disk, so that an interrupted calibration goes on.

One `.npz` file per group of prompts: their numbers and lengths, which rollouts were cut, and each score of their tokens. A file
is written whole; a damaged one is removed, and its prompts are done again.
"""

import contextlib
import json
import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import make_folder, write_text, write_whole

logger = logging.getLogger(__name__)

Trajectory = NDArray[np.float32]


class ScoreParts:
    """The parts of one calibration, with these scores, in a folder of its own."""

    def __init__(self, folder: Path, scores: Sequence[Score]) -> None:
        self.folder, self.scores = folder, scores
        self._lock: Lock | None = None
        self._where: dict[int, tuple[Path, int]] = {}  # prompt number: its part, and its place there
        self._cut: set[int] = set()  # prompt numbers
        for path in sorted(folder.glob("*.npz")):
            try:
                with path.open("rb") as stream, np.load(stream) as part:
                    numbers, lengths, cut = part["prompts"], part["lengths"], part["cut"]
                    sound = all(len(part[score.name]) == lengths.sum() for score in self.scores)
            except Exception:  # a damaged archive raises errors of any kind
                sound = False
            if sound:
                self._where |= {int(number): (path, place) for place, number in enumerate(numbers)}
                self._cut.update(int(number) for number in numbers[cut])
            else:
                logger.warning("'%s' is damaged; its prompts are done again", path)
                path.unlink()

    @property
    def done(self) -> frozenset[int]:
        """The prompts whose scores are here, by number."""
        return frozenset(self._where)

    @property
    def cut(self) -> int:
        """How many rollouts ran into their limit of tokens."""
        return len(self._cut)

    def add(self, numbers: Sequence[int], scores: Mapping[str, Sequence[Trajectory]], cut: Sequence[bool]) -> None:
        """The scores of finished rollouts: for each name one array `[tokens]` per prompt number; and whether each was cut."""
        lengths = np.array([len(values) for values in next(iter(scores.values()))], dtype=np.int64)
        whole = {name: np.concatenate(values).astype(np.float32) for name, values in scores.items()}
        path = self.folder / f"{min(numbers):09d}.npz"
        columns: dict[str, Any] = {"prompts": np.array(numbers), "lengths": lengths, "cut": np.array(cut), **whole}
        write_whole(path, lambda stream: np.savez(stream, **columns))
        self._where |= {number: (path, place) for place, number in enumerate(numbers)}
        self._cut.update(number for number, was_cut in zip(numbers, cut, strict=True) if was_cut)

    def read(self, *, cut: bool = False) -> Iterator[dict[str, list[Trajectory]]]:
        """All scores, part by part in the order of their first prompts: for each name one array `[tokens]` per rollout.

        cut: only those of the rollouts that were cut.
        """
        places: dict[Path, list[int]] = defaultdict(list)
        for path, place in (where for number, where in self._where.items() if not cut or number in self._cut):
            places[path].append(place)
        for path in sorted(places):
            with np.load(path) as part:
                ends = np.cumsum(part["lengths"])[:-1]
                rows = {score.name: np.split(part[score.name], ends) for score in self.scores}
                yield {name: [values[place] for place in sorted(places[path])] for name, values in rows.items()}

    def remember(self, name: str, value: Any) -> None:
        """Save a small result beside the parts."""
        write_text(self.folder / "results.json", json.dumps(self.remembered() | {name: value}))

    def remembered(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "results.json").read_text()))
        except (OSError, ValueError):
            return {}

    def __enter__(self) -> Self:
        """Keep other processes out until `__exit__`. Raises ArgumentError where another one is at work."""
        make_folder(self.folder)
        try:
            self._lock = Lock(self.folder / "lock")
        except Locked:
            raise ArgumentError(
                f"another process measures this calibration: '{self.folder}' is locked; wait for it, or give another --out"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.remove()
        with contextlib.suppress(OSError):  # what was finished stays
            self.folder.rmdir()

    def clear(self) -> None:
        """Remove everything: the calibration is written."""
        shutil.rmtree(self.folder, ignore_errors=True)
