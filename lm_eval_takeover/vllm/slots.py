"""The state of requests that are being written: tables on the device with a row for each slot.

A request keeps its slot while vLLM moves it in the batch; on model runner V2 that is vLLM's own index. The tables hold its window
of scores, the keys of its words, how it draws, and where its text begins, so a draw needs nothing of the host. Slot -1 is a row
that nobody reads: vLLM's mark of padding.

Records go to the host and stay there when a request leaves the batch, finished or preempted. They restore the window of a request
that returns. They are overwritten by position, since a partial or repeated prefill shows the gate a position again.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding import emission
from lm_eval_takeover.decoding.emission import COLUMNS, REST, SCORE, Emitted
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.caches import HostCopy, upload
from lm_eval_takeover.forward.self_check import check_kernels
from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.method.policy import DIRECTIONS, Block, Policy
from lm_eval_takeover.method.request import GREEDY
from lm_eval_takeover.method.sampling import CHANCE, as_chances, request_digest, stream_key
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings

# Scores of a slot that the device holds, at least: twice a client's longest window, for the block behind it.
_RING = 2**13
_STREAMS = ("token", CHANCE)
# Names among an engine's layers, which vLLM keeps in its configuration: there a gate finds its model, and a worker its slots.
PAIR, SLOTS = "takeover.pair", "takeover.slots"


@dataclass(eq=False)
class Track:
    """One request. `slot` is None while it is out of the batch; `records` `[positions, columns]` are on the host."""

    settings: RequestSettings
    policy: Policy
    keys: NDArray[np.uint64]  # of its streams: `[streams, 2]`
    table: NDArray[np.float32]  # grows by doubling
    written: int = 0  # its positions that were recorded, at most: some were seen twice
    slot: int | None = None
    forced: Tensor | None = None
    # Lengths of drafts by the position of their first token. 1 where both models read one token without a draft.
    drafts: dict[int, int] = field(default_factory=dict)

    @cached_property
    def kind(self) -> str:
        """Policy and records. Rows of one kind are decided together."""
        settings = self.settings
        return f"{self.policy}{settings.traced}{settings.scored}{settings.compared}{bool(settings.forced)}"

    @property
    def records(self) -> NDArray[np.float32]:
        return self.table[: self.written]

    def write(self, position: int, records: NDArray[np.float32]) -> None:
        """Store records `[k, columns]` from this position on."""
        end = position + len(records)
        if end > len(self.table):
            self.table = np.concatenate([self.table, np.zeros((max(end, 64), self.table.shape[1]), np.float32)])
        self.table[position:end, : records.shape[1]] = records
        self.written = max(self.written, end)


class Slots:
    """All requests of one worker. `capacity` of them are in the batch at a time."""

    @classmethod
    def open(cls, config: Any, settings: EngineSettings, device: torch.device) -> Self:
        """The slots of an engine, for its gate. Raises ArgumentError if the kernels give wrong results on this device."""
        check_kernels(device)
        if device.type == "cuda" and not kernels.run_on(device):
            raise ArgumentError(f"{device}: backend=vllm needs the kernels for scores and draws; use backend=hf")
        slots = cls(settings.load_policy(), capacity=config.scheduler_config.max_num_seqs, device=device)
        config.compilation_config.static_forward_context[SLOTS] = slots
        return slots

    def __init__(self, policy: Policy, *, capacity: int, device: torch.device) -> None:
        self.policy, self.capacity, self.device = policy, capacity, device
        # A ring by position, and behind it a column that nobody reads.
        self.scores = torch.zeros(capacity + 1, max(_RING, 2 * policy.window) + 1, device=device)
        self.keys = torch.zeros(capacity + 1, len(_STREAMS), 2, dtype=torch.int64, device=device)
        rule = torch.tensor(astuple(GREEDY), dtype=torch.float64, device=device)
        self.rules = rule.repeat(capacity + 1, 1)
        self.starts = torch.zeros(capacity + 1, dtype=torch.int64, device=device)  # tokens before the text
        self._free = set(range(capacity))
        self._tracks: OrderedDict[str, Track] = OrderedDict()  # by the id of the request
        self.most_held = 2 * capacity + 1024
        # Records on their way to the host, and the lengths of their drafts.
        self._arriving: deque[tuple[list[Track], Sequence[int], HostCopy]] = deque()

    # Requests come and go

    def enter(self, settings: RequestSettings, prompt: Sequence[int], slot: int | None = None) -> Track:
        """Let a request join the batch, for the first time or again. slot: a free one by default."""
        track = self._tracks.get(settings.id)
        if track is None:
            track = self._meet(settings, prompt)
        elif track.slot is None:
            self._collect(wait=True)  # its window may still be on its way
        if track.slot is None:
            track.slot = self._free.pop() if slot is None else slot
            self._free.discard(track.slot)
            self.keys[track.slot] = upload(torch.from_numpy(track.keys.view(np.int64)), self.device)
            rule = torch.tensor(astuple(settings.sampling), dtype=torch.float64)
            self.rules[track.slot] = upload(rule, self.device)
            self.starts[track.slot] = len(prompt) - settings.begun
            ring = self.scores.shape[1] - 1
            recent = track.records[-ring:, SCORE]
            if len(recent):  # its window
                scores = np.zeros(ring + 1, np.float32)
                scores[(len(track.records) - len(recent) + np.arange(len(recent))) % ring] = recent
                self.scores[track.slot] = upload(torch.from_numpy(scores), self.device)
        return track

    def _meet(self, settings: RequestSettings, prompt: Sequence[int]) -> Track:
        begun = settings.begun
        columns = max(COLUMNS, emission.count_scored(settings.compared)) if settings.compared or settings.scored else COLUMNS
        records = np.zeros((begun, columns), np.float32)
        if scores := settings.begun_scores[-begun:] if begun else ():
            records[begun - len(scores) :, SCORE] = scores
        policy = settings.choose_policy(self.policy)
        if 2 * policy.window >= self.scores.shape[1]:
            raise ArgumentError(f"window={policy.window} is more than the slots of this engine hold")
        digest = request_digest(prompt[: len(prompt) - begun])
        keys = np.stack([stream_key(settings.seed, digest, settings.sample, stream) for stream in _STREAMS])
        track = Track(settings, policy, keys, records, begun)
        if settings.forced:
            track.forced = place_numbers(settings.forced, self.device)
        self._tracks[settings.id] = track
        return track

    def leave(self, track: Track) -> None:
        """Let a request leave the batch and free its slot. Its records stay until they are taken."""
        if track.slot is None:
            return
        if track.settings.id in self._tracks:
            self._tracks.move_to_end(track.settings.id)
        self._free.add(track.slot)
        track.slot = None
        while len(self._tracks) > self.most_held:  # of requests that were aborted; those of preempted ones are fewer
            self._tracks.pop(next(name for name, one in self._tracks.items() if one.slot is None))

    def rehearse(self, logits: dict[str, Tensor], *, drafted: Tensor | None = None) -> None:
        """`decide` for made-up requests, one a row, while vLLM measures how much memory a step takes."""
        self._rehearse(RequestSettings(temperature=1.0, top_p=0.95, traced=True), logits, drafted)
        # One request of each other kind that kernels are compiled for, so that no real request waits for a compiler.
        first, draft = {role: own[:1] for role, own in logits.items()}, None if drafted is None else drafted[:1]
        both = len(logits) > 1  # scores compare two models
        for top_p, top_k in ((1.0, 0), (0.95, 20)):
            for scored in (False, True)[: 1 + both]:
                self._rehearse(RequestSettings(temperature=1.0, top_p=top_p, top_k=top_k, scored=scored), first, draft)
        for compared in (False, True)[: 1 + both]:
            self._rehearse(RequestSettings(forced=(0,), compared=compared), first, draft)

    def _rehearse(self, settings: RequestSettings, logits: dict[str, Tensor], drafted: Tensor | None) -> None:
        rows = len(next(iter(logits.values())))
        tracks = [self.enter(replace(settings, id=f"made up {row}"), (0,)) for row in range(rows)]
        self.decide(tracks, torch.zeros(rows, dtype=torch.int64, device=self.device), logits, drafted=drafted)
        self._collect(wait=True)
        for track in tracks:
            self.leave(track)
            del self._tracks[track.settings.id]

    def read(self, request_id: str, start: int, stop: int, last: bool = False) -> tuple[bytes, dict[str, int]] | None:
        """Records of positions `start` to `stop`, float32 `[positions, columns]` as bytes, and the passes of drafts until then.

        A draft costs one pass of the verifier, and one of the drafter for each token. last: forgets the request. None for an
        unknown request.
        """
        track = self._tracks.get(request_id)
        if track is None:
            return None
        self._collect(wait=True)
        drafting, verifying = DIRECTIONS[self.policy.direction]
        drafts = [count for position, count in track.drafts.items() if position < stop]
        if last:
            del self._tracks[request_id]
        return track.records[start:stop].tobytes(), {drafting: sum(drafts), verifying: len(drafts)}

    def _collect(self, *, wait: bool = False) -> None:
        """Store the records that have arrived. wait: all of them."""
        while self._arriving and (wait or self._arriving[0][2].arrived):
            tracks, drafts, copy = self._arriving.popleft()
            positions, records = copy.fetch()
            for track, count, position, own in zip(tracks, drafts, positions.tolist(), records.numpy(), strict=True):
                if position >= 0:
                    track.write(position, own)
                if count > 0 or (count < 0 and position > track.settings.begun):
                    track.drafts[position] = abs(count)

    # The batch

    def decide(
        self,
        tracks: Sequence[Track],
        positions: Tensor,
        logits: dict[str, Tensor],
        *,
        drafted: Tensor | None = None,
        drafts: Sequence[int] = (),
    ) -> Tensor:
        """The tokens `[rows, k]` that the policy of each row emits, in the order of `tracks`. Stores their records.

        positions `[rows]`: tokens of the text before, negative where a row only reads. logits: `[rows, k, vocab]` by role.
        drafted `[rows, k]`: the host's tokens, if it has drafted. drafts: the number of each row's own drafted tokens, -1 without
        a draft; empty if nobody drafts. Records behind the first replaced token of a draft are overwritten later.
        """
        drafts = drafts or [0] * len(tracks)
        groups: dict[str, list[int]] = {}
        for row, track in enumerate(tracks):
            groups.setdefault(track.kind, []).append(row)
        if len(groups) == 1:
            return self._decide_alike(tracks, positions, logits, drafted, drafts)
        shape = next(iter(logits.values())).shape
        tokens = torch.empty(shape[:2], dtype=torch.int64, device=self.device)
        for rows in groups.values():
            some = place_numbers(rows, self.device)
            part = {role: own[some] for role, own in logits.items()}
            draft = None if drafted is None else drafted[some]
            alike, counts = [tracks[i] for i in rows], [drafts[i] for i in rows]
            tokens[some] = self._decide_alike(alike, positions[some], part, draft, counts)
        return tokens

    def _decide_alike(
        self,
        tracks: Sequence[Track],
        positions: Tensor,
        logits: dict[str, Tensor],
        drafted: Tensor | None,
        drafts: Sequence[int],
    ) -> Tensor:
        """As `decide`, for rows of one kind."""
        count = next(iter(logits.values())).shape[1]
        slots = self.place(tracks)
        places = positions[:, None] + torch.arange(count, device=self.device)
        if tracks[0].settings.compared:
            emitted = emission.compare_forced(logits["base"], logits["guide"], self._forced(tracks, places))
        else:
            emitted = self._emit(tracks, slots, places, logits, drafted)
        ring = self.scores.shape[1] - 1  # scores of positions before a text go where nobody reads
        self.scores[slots[:, None], torch.where(places >= 0, places % ring, ring)] = emitted.records[..., SCORE]
        self._arriving.append((list(tracks), drafts, HostCopy(places[:, 0], emitted.records)))  # no wait
        self._collect()
        return emitted.tokens

    def _emit(
        self, tracks: Sequence[Track], slots: Tensor, places: Tensor, logits: dict[str, Tensor], drafted: Tensor | None
    ) -> Emitted:
        """`emit` for rows of one kind. slots `[rows]`; places: positions `[rows, k]`."""
        settings, policy = tracks[0].settings, tracks[0].policy
        cuts = kernels.Rules.find_cuts(map(astuple, {track.settings.sampling for track in tracks}))  # mostly one
        block = Block(
            places,
            places.new_zeros(places.shape, dtype=torch.float32),
            self._windows(slots[:, None], places[:, :1], policy.window),
            as_chances(self._words(slots, places, CHANCE)) if policy.uses_chance else None,
            place_numbers([track.settings.donor_length for track in tracks], self.device),
        )
        emitted = emission.emit(
            policy,
            kernels.Rules(self.rules[slots], *cuts),
            logits.get(policy.host or ""),
            logits.get(policy.donor or ""),
            block,
            self._words(slots, places),
            drafted=drafted,
            forced=self._forced(tracks, places) if settings.forced else None,
            traced=settings.traced,
        )
        if settings.scored:
            host, donor = (logits[role] for role in DIRECTIONS[self.policy.direction])
            scores = emission.score_all(host, donor, emitted.tokens)
            emitted = replace(emitted, records=torch.cat([emitted.records[..., :REST], scores], -1))
        return emitted

    def draw(self, slots: Tensor, positions: Tensor, logits: Tensor, asked: Tensor | None = None) -> Tensor:
        """Draw ids `[rows]` from logits `[rows, vocab]` at positions `[rows]`; 0 where not asked. Capturable."""
        rules = kernels.Rules(self.rules[slots], truncates=True, selects=True)  # kernels skip other rows
        at = self._words(slots, positions[:, None])
        return emission.draw_rows(logits[:, None], at, rules, None if asked is None else asked[:, None])[:, 0]

    def count_written(self, read: Tensor, slots: Tensor) -> Tensor:
        """The number of tokens `[rows]` of the texts in these slots, whose last token is at vLLM's position `read`.

        Negative while a prompt is read in parts, for the first time or after a preemption.
        """
        return read.long() + 1 - self.starts[slots.long()]

    def _words(self, slots: Tensor, places: Tensor, stream: str = "token") -> Tensor:
        """The words of positions `[rows, k]`: int64 `[rows, k]`. Those of negative positions mean nothing."""
        return emission.compute_words(self.keys[slots, _STREAMS.index(stream)], places.clamp(min=0))

    def _forced(self, tracks: Sequence[Track], places: Tensor) -> Tensor:
        """The forced tokens at positions `[rows, k]`. Behind the end of a text: its last token."""
        texts = [track.forced for track in tracks if track.forced is not None]
        ends = np.cumsum([len(text) for text in texts])
        first = place_numbers([0, *ends[:-1].tolist()], self.device)[:, None]
        last = place_numbers((ends - 1).tolist(), self.device)[:, None]
        return torch.cat(texts)[torch.minimum(first + places.clamp(min=0), last)]

    def place(self, tracks: Sequence[Track]) -> Tensor:
        """The slots `[rows]` of requests in the batch."""
        return place_numbers([-1 if track.slot is None else track.slot for track in tracks], self.device)

    def _windows(self, slots: Tensor, position: Tensor, size: int) -> Tensor:
        """The scores just before these positions `[rows, 1]`, oldest first, zeros where there are none: `[rows, size]`."""
        ring = self.scores.shape[1] - 1
        before = position - torch.arange(size, 0, -1, device=self.device)
        return torch.where(before >= 0, self.scores[slots, before.clamp(min=0) % ring], 0.0)


def place_numbers(values: Sequence[int], device: torch.device) -> Tensor:
    """Numbers on the device as int64. The host does not wait."""
    return upload(torch.tensor(values, dtype=torch.int64), device)


class WorkerExtension:
    """Methods of vLLM's workers, which `collective_rpc` calls: `worker_extension_cls`."""

    vllm_config: Any

    def read_takeover_records(self, wishes: list[tuple[str, int, int, bool]]) -> list[tuple[bytes, dict[str, int]] | None]:
        """`Slots.read` for each `(request, start, stop, last)`."""
        slots = self.vllm_config.compilation_config.static_forward_context[SLOTS]
        return [slots.read(*wish) for wish in wishes]
