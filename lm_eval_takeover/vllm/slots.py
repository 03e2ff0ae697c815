"""The state of requests that are being written: device tensors with a row per slot.

A request keeps its slot while vLLM moves it about in the batch. When it leaves the batch, whether finished or preempted, its
records are parked, and put back if it returns. Records are kept by position and written over: a partial prefill, or the prefill
after a preemption, shows the gate a position that it will see again.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lm_eval_takeover.method.policy import DIRECTIONS, Block, Policy
from lm_eval_takeover.method.sampling import chances, request_digest, to_tensor, words
from lm_eval_takeover.vllm.emission import (
    COLUMNS,
    REST,
    SCORE,
    Emitted,
    compare_forced,
    count_scored,
    draw_rows,
    emit,
    score_all,
)
from lm_eval_takeover.vllm.settings import RequestSettings

# Numbers of requests that are out of the batch. Records that nobody fetches, as of a plain vLLM user, push each other out.
_PARKED, _LEAST_PARKED = 2**23, 2**11


@dataclass(eq=False)
class Track:
    """One request. `slot` is None while it is out of the batch; `parked` holds its records then, `[positions, COLUMNS]`."""

    key: Hashable
    settings: RequestSettings
    policy: Policy
    slot: int | None = None
    parked: Tensor | None = None
    written: int = 0  # positions that were recorded, at most: some were seen twice
    passes: dict[str, int] = field(default_factory=lambda: {"base": 0, "guide": 0})  # of a blockwise engine

    @cached_property
    def kind(self) -> str:
        """Rows of one kind are decided together: of one policy, one sampling, and alike in what is recorded."""
        one = self.settings
        return f"{self.policy}{one.sampling}{one.traced}{one.scored}{one.compared}{bool(one.forced)}"

    @property
    def parked_size(self) -> int:
        """Numbers that are held while it is out of the batch; a few count as many."""
        return 0 if self.parked is None else max(self.parked.numel(), _LEAST_PARKED)

    @property
    def columns(self) -> int:
        """Of its records."""
        one = self.settings
        return max(COLUMNS, count_scored(one.compared)) if one.compared or one.scored else COLUMNS


class Slots:
    """All requests of one worker. `capacity` requests of up to `length` positions are in the batch at a time."""

    def __init__(self, policy: Policy, *, capacity: int, length: int, device: torch.device) -> None:
        self.policy, self.capacity, self.length, self.device = policy, capacity, length, device
        self.records = torch.zeros(capacity, length, COLUMNS, device=device)
        self.words = torch.zeros(capacity, length, dtype=torch.int64, device=device)
        self.calls = 0
        self._free = list(range(capacity))[::-1]
        self._tracks: OrderedDict[Hashable, Track] = OrderedDict()
        self._by_id: dict[str, Track] = {}
        self._parked = 0  # the sum of `parked_size`

    # Made where they are needed: by policies that decide by chance, and by log-likelihoods.

    @cached_property
    def chances(self) -> Tensor:
        return torch.zeros(self.capacity, self.length, dtype=torch.float64, device=self.device)

    @cached_property
    def forced(self) -> Tensor:
        return torch.zeros(self.capacity, self.length, dtype=torch.int64, device=self.device)

    # Requests come and go

    def enter(
        self, key: Hashable, settings: RequestSettings, prompt: Sequence[int], max_new_tokens: int | None
    ) -> Track:
        """A request that joins the batch, for the first time or once more."""
        track = self._tracks.get(key)
        if track is None:
            track = Track(key, settings, settings.choose_policy(self.policy, strict=False))
            self._tracks[key] = track
            if settings.id:
                self._by_id[settings.id] = track
        if track.slot is not None:
            return track
        track.slot = slot = self._free.pop()
        self._widen(track.columns)
        begun = settings.begun
        count = min(begun + (max_new_tokens or self.length), self.length)
        digest = request_digest(prompt[: len(prompt) - begun])
        self.words[slot, :count] = to_tensor(words(settings.seed, digest, settings.sample, count), self.device)
        if track.policy.uses_chance:
            numbers = torch.from_numpy(chances(settings.seed, digest, settings.sample, count))
            self.chances[slot, :count] = numbers.to(self.device)
        if settings.forced:
            self.forced[slot, : len(settings.forced)] = torch.tensor(settings.forced, device=self.device)
        if track.parked is not None:
            self.records[slot, : len(track.parked), : track.columns] = track.parked
            self._parked -= track.parked_size
            track.parked = None
        elif begun:
            self.records[slot, :begun] = 0
            known = settings.begun_scores[-begun:]
            self.records[slot, begun - len(known) : begun, SCORE] = self.records.new_tensor(known)
            track.written = begun
        return track

    def leave(self, track: Track) -> None:
        """A request that left the batch. Its slot is free; its records stay until they are taken, or are the oldest of many."""
        if track.slot is None:
            return
        if track.key in self._tracks:
            track.parked = self.records[track.slot, : track.written, : track.columns].clone()
            self._parked += track.parked_size
            self._tracks.move_to_end(track.key)
        self._free.append(track.slot)
        track.slot = None
        while self._parked > _PARKED:
            self._forget(next(one for one in self._tracks.values() if one.parked is not None))

    def _widen(self, columns: int) -> None:
        """Make room for records of so many columns: comparisons have more than texts that are written."""
        missing = columns - self.records.shape[-1]
        if missing > 0:
            self.records = torch.nn.functional.pad(self.records, (0, missing))

    def _forget(self, track: Track) -> None:
        self._parked -= track.parked_size
        self._tracks.pop(track.key, None)
        self._by_id.pop(track.settings.id, None)

    def read(self, request_id: str, start: int, stop: int) -> tuple[bytes, dict[str, int]] | None:
        """The records of positions from `start` to `stop`, float32 `[positions, columns]` as bytes, and the passes so far.

        None where the request is not known.
        """
        track = self._by_id.get(request_id)
        if track is None:
            return None
        held = self.records[track.slot] if track.slot is not None else track.parked
        assert held is not None
        return np.ascontiguousarray(held[start:stop, : track.columns].cpu().numpy()).tobytes(), track.passes

    def take(self, request_id: str, count: int) -> tuple[bytes, dict[str, int]] | None:
        """As `read`, the first `count` positions; forgets the request."""
        found = self.read(request_id, 0, count)
        if found is not None:
            self._forget(self._by_id[request_id])
        return found

    # The batch

    def decide(
        self,
        tracks: Sequence[Track],
        positions: Tensor,
        logits: dict[str, Tensor],
        *,
        drafted: Tensor | None = None,
    ) -> Emitted:
        """What the policy of each row emits: rows in the order of `tracks`.

        positions `[rows]`: tokens emitted before. logits: `[rows, k, vocab]` by role. drafted `[rows, k]`: the host's tokens,
        where it has drafted. Records are entered; of a draft those behind its first other token will be written over.
        """
        self.calls += 1
        groups = _group(tracks)
        if len(groups) == 1:
            return self._decide_alike(tracks, positions, logits, drafted)
        shape = next(iter(logits.values())).shape
        whole = Emitted(
            torch.zeros(shape[:2], dtype=torch.int64, device=self.device),
            torch.zeros(shape[:2], dtype=torch.bool, device=self.device),
            torch.zeros(*shape[:2], self.records.shape[-1], device=self.device),
        )
        for rows in groups:
            some = place_numbers(rows, self.device)
            part = {role: one[some] for role, one in logits.items()}
            draft = None if drafted is None else drafted[some]
            emitted = self._decide_alike([tracks[i] for i in rows], positions[some], part, draft)
            whole.tokens[some], whole.taken[some] = emitted.tokens, emitted.taken
            whole.records[some, :, : emitted.records.shape[-1]] = emitted.records
        return whole

    def _decide_alike(
        self, tracks: Sequence[Track], positions: Tensor, logits: dict[str, Tensor], drafted: Tensor | None
    ) -> Emitted:
        """As `decide`, for rows of one policy and one sampling."""
        count = next(iter(logits.values())).shape[1]
        slots = self._place_slots(tracks)[:, None]
        here = self._in_text(tracks, positions)[:, None] + torch.arange(count, device=self.device)
        inside = here.clamp(max=self.length - 1)
        if tracks[0].settings.compared:
            emitted = compare_forced(logits["base"], logits["guide"], self.forced[slots, inside])
        else:
            emitted = self._emit(tracks, slots, here, inside, logits, drafted)
        self.records[slots, inside, : emitted.records.shape[-1]] = emitted.records
        for track in tracks:
            track.written = min(track.written + count, self.length)
        return emitted

    def _emit(
        self,
        tracks: Sequence[Track],
        slots: Tensor,
        here: Tensor,
        inside: Tensor,
        logits: dict[str, Tensor],
        drafted: Tensor | None,
    ) -> Emitted:
        """slots `[rows, 1]`; here: the positions `[rows, k]`; inside: the same, none behind what is held."""
        settings, policy = tracks[0].settings, tracks[0].policy
        block = Block(
            here,
            here.new_zeros(here.shape, dtype=torch.float32),
            self._windows(slots, here[:, :1], policy.window),
            self.chances[slots, inside] if policy.uses_chance else None,
            place_numbers([track.settings.donor_length for track in tracks], self.device),
        )
        emitted = emit(
            policy,
            settings.sampling,
            logits.get(policy.host or ""),
            logits.get(policy.donor or ""),
            block,
            self.words[slots, inside],
            drafted=drafted,
            forced=self.forced[slots, inside] if settings.forced else None,
            traced=settings.traced,
        )
        if settings.scored:
            host, donor = (logits[role] for role in DIRECTIONS[self.policy.direction])
            found = score_all(host, donor, emitted.tokens)
            emitted = replace(emitted, records=torch.cat([emitted.records[..., :REST], found], -1))
        return emitted

    def draw(self, tracks: Sequence[Track], positions: Tensor, logits: Tensor) -> Tensor:
        """What one model draws: ids `[rows]` of logits `[rows, vocab]` at positions `[rows]`."""
        tokens = torch.zeros_like(positions)
        groups = _group(tracks)
        for rows in groups:
            some = place_numbers(rows, self.device)
            slots = self._place_slots([tracks[i] for i in rows])
            inside = self._in_text([tracks[i] for i in rows], positions[some]).clamp(0, self.length - 1)
            at = self.words[slots, inside]
            tokens[some] = draw_rows(logits[some], at, tracks[rows[0]].settings.sampling)
        return tokens

    def _in_text(self, tracks: Sequence[Track], positions: Tensor) -> Tensor:
        """Positions `[rows]` counted from the first token of a text, of those that vLLM counts from where it goes on."""
        begun = [track.settings.begun for track in tracks]
        return positions + place_numbers(begun, self.device) if any(begun) else positions

    def _place_slots(self, tracks: Sequence[Track]) -> Tensor:
        """`[rows]`; all of them are in the batch."""
        return place_numbers([-1 if track.slot is None else track.slot for track in tracks], self.device)

    def _windows(self, slots: Tensor, position: Tensor, size: int) -> Tensor:
        """The scores just before these positions `[rows, 1]`, oldest first, zeros where there are none: `[rows, size]`."""
        before = position - torch.arange(size, 0, -1, device=self.device)
        return torch.where(before >= 0, self.records[slots, before.clamp(min=0), SCORE], 0.0)


def place_numbers(values: Sequence[int], device: torch.device) -> Tensor:
    """Numbers of the host as int64 on the device, which nobody waits for: a plain copy would wait for all that it computes."""
    return torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _group(tracks: Sequence[Track]) -> list[list[int]]:
    """Rows of one kind."""
    groups: dict[str, list[int]] = {}
    for row, track in enumerate(tracks):
        groups.setdefault(track.kind, []).append(row)
    return list(groups.values())
