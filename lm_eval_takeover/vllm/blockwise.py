"""Blockwise verification on vLLM's model runner V1: the host is its draft model, the donor its target.

Forward, and for a guide that writes alone, the base drafts and the guide verifies.

Where vLLM's rejection sampler stood, the policy says which token is emitted at each position of a draft (`emission`). Of the
runner two methods are replaced in its instance: `_sample`, which gets the target's logits, and `sample_tokens` around it, which
knows the batch that they came from. The drafter draws by the race and keeps its logits for the scores.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm.platforms import current_platform
from vllm.v1.outputs import SamplerOutput
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.vllm.pair_model import share
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings
from lm_eval_takeover.vllm.slots import Slots, Track, place_numbers
from lm_eval_takeover.vllm.worker import WorkerExtension

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

_NO_TOKEN = -1  # vLLM's mark for places of the output behind what is emitted
_PIECE = 2**28  # bytes of both models' logits that are put beside each other at a time


class TakeoverWorker(PlatformWorker, WorkerExtension):  # type: ignore[misc]
    """vLLM's worker of this platform with a gate in its runner."""

    def init_device(self) -> None:
        super().init_device()
        runner = self.model_runner
        gate = BlockwiseGate(runner)
        runner.takeover_slots = gate.slots
        runner.drafter = TakeoverProposer(self.vllm_config, self.device, runner, gate)
        run = runner.sample_tokens

        def sample_tokens(grammar_output: Any) -> Any:
            state = runner.execute_model_state
            gate.attention = None if state is None else state.spec_decode_common_attn_metadata
            return run(grammar_output)

        runner.sample_tokens = sample_tokens
        runner._sample = gate.sample
        measure = runner.profile_run

        def profile_run(*arguments: Any, **options: Any) -> None:
            measure(*arguments, **options)
            gate.rehearse(block=self.vllm_config.speculative_config.num_speculative_tokens)

        runner.profile_run = profile_run


class TakeoverProposer(DraftModelProposer):  # type: ignore[misc]
    """The host as drafter: tokens by the race, logits kept."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any, gate: "BlockwiseGate") -> None:
        super().__init__(vllm_config, device, runner)
        self.use_heterogeneous_vocab, self.vocab_mapping = False, None  # the ids mean the same: only padding differs
        self.runner, self.gate = runner, gate
        self.kept: list[Tensor] = []  # raw logits `[rows, vocab]` of each drafted position
        self.kept_rows: dict[str, int] = {}  # by request
        self._parked: dict[str, Tensor] = {}  # `[k, vocab]` of requests whose drafts wait while they are not scheduled
        self._positions = torch.zeros(0, dtype=torch.int64)

    def propose(
        self, *, common_attn_metadata: Any, num_rejected_tokens_gpu: Tensor | None = None, **rest: Any
    ) -> Tensor:
        """Drafts `[rows, k]`. The first drafted token follows the one that was just sampled."""
        rows = common_attn_metadata.batch_size()
        length = common_attn_metadata.seq_lens[:rows].long()
        if num_rejected_tokens_gpu is not None:
            length = length - num_rejected_tokens_gpu[:rows]
        batch = self.runner.input_batch
        prompts = place_numbers(batch.num_prompt_tokens[:rows].tolist(), length.device)
        self._positions = (length + 1 - prompts).clamp(min=0)
        self._park(set(batch.req_ids))
        self.kept, self.kept_rows = [], {name: row for row, name in enumerate(batch.req_ids)}
        drafted: Tensor = super().propose(
            common_attn_metadata=common_attn_metadata, num_rejected_tokens_gpu=num_rejected_tokens_gpu, **rest
        )
        return drafted

    def _park(self, here: set[str]) -> None:
        """Keep the logits of drafts that were not looked at, since their requests are out of the batch for a while."""
        self._parked = {name: one for name, one in self._parked.items() if name in self.runner.requests}
        for name, row in self.kept_rows.items():
            if name not in here and name in self.runner.requests and self.kept:
                self._parked[name] = torch.stack([logits[row] for logits in self.kept])

    def parked_logits(self, name: str, count: int) -> Tensor:
        """The host's logits of the first drafted positions of a request that was out of the batch: `[count, vocab]`."""
        return self._parked[name][:count]

    def _sample_draft_tokens(self, hidden_states: Tensor, sampling_metadata: Any) -> tuple[Tensor, None]:
        logits = share(self.model.compute_logits(hidden_states), self.gate.settings.vocab)
        if self.gate.keeps_drafts:
            self.kept.append(logits)
        tokens = self.gate.slots.draw(self.gate.tracks, self._positions, logits)
        self._positions = self._positions + 1
        return tokens, None

    @torch.inference_mode()
    def read_next(self, attention: Any, scheduled: Sequence[int]) -> Tensor:
        """The host's logits `[rows, vocab]` behind the text that the target has just read, `scheduled` drafts left out."""
        count = attention.num_actual_tokens
        _, by_layer = self.build_per_group_and_layer_attn_metadata(attention)
        with set_forward_context(
            by_layer,
            self.vllm_config,
            num_tokens=count,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            slot_mapping=self._get_slot_mapping(count, attention.slot_mapping[:count]),
        ):
            hidden = self.model(
                input_ids=self.runner.input_ids.gpu[:count],
                positions=self.runner.positions[:count],
                inputs_embeds=None,
            )
        behind = place_numbers(scheduled, hidden.device)
        last = attention.query_start_loc[1 : attention.num_reqs + 1].long() - 1 - behind
        return share(self.model.compute_logits(hidden[last]), self.gate.settings.vocab)


class BlockwiseGate:
    """Takes the place of the rejection sampler. `tracks` are the requests of the batch, in its order."""

    def __init__(self, runner: Any) -> None:
        config = runner.vllm_config
        self.runner = runner
        self.settings = EngineSettings.of(config.model_config.hf_config)
        self.policy = self.settings.load_policy()
        self.drafting, self.verifying = DIRECTIONS[self.policy.direction]
        self.slots = Slots(
            self.policy,
            capacity=config.scheduler_config.max_num_seqs,
            device=runner.device,
        )
        self.attention: Any = None  # vLLM's attention metadata of the tokens that the target has just read
        self.tracks: list[Track] = []

    @property
    def keeps_drafts(self) -> bool:
        """Whether the host's logits decide; for a guide that writes alone, its draws do."""
        return self.policy.host is not None

    def sample(self, logits: Tensor, metadata: Any) -> SamplerOutput:
        """What is emitted of each row: ids `[rows, k + 1]`, behind them `_NO_TOKEN`."""
        scheduled = [0] * len(self.runner.input_batch.req_ids) if metadata is None else list(metadata.num_draft_tokens)
        drafts = _count_drafted(scheduled, metadata)
        self._follow_batch()
        live = [not discarded for discarded in self.runner.discard_request_mask.np[: len(drafts)]]
        batch, device = self.runner.input_batch, logits.device
        written = [self.runner.requests[name].num_tokens for name in batch.req_ids]
        prompts = batch.num_prompt_tokens[: len(drafts)].tolist()
        positions = place_numbers([a - b for a, b in zip(written, prompts, strict=True)], device)
        at, drafted = _align(scheduled, metadata, device)
        host = self._find_host(drafts, scheduled, live)
        parts = []
        for rows in _split(len(drafts), self._piece_rows(at.shape[1], logits)):
            target = share(logits[at[rows]], self.settings.vocab)
            if host is None:
                parts.append(self.slots.decide(self.tracks[rows], positions[rows], {self.verifying: target}).tokens)
                continue
            own = host(rows)
            by_role = {self.drafting: own, self.verifying: target[:, : own.shape[1]]}
            drafted[rows] = self._draw_undrafted(drafted[rows], drafts[rows], self.tracks[rows], positions[rows], own)
            parts.append(self.slots.decide(self.tracks[rows], positions[rows], by_role, drafted=drafted[rows]).tokens)
        emitted = torch.cat(parts)
        kept = self._count(emitted, drafted, drafts)
        width = max(scheduled) + 1
        out = torch.full((len(drafts), width), _NO_TOKEN, dtype=torch.int32, device=logits.device)
        places = torch.arange(width, device=logits.device)
        emitted = torch.nn.functional.pad(emitted, (0, width - emitted.shape[1]))
        out = torch.where(places < kept[:, None], emitted.int(), out)
        for track, count, alive in zip(self.tracks, drafts, live, strict=True):
            if alive and count:
                track.passes[self.verifying] += 1
                track.passes[self.drafting] += count
        return SamplerOutput(sampled_token_ids=out, logprobs_tensors=None)

    def _follow_batch(self) -> None:
        """Tracks of the requests that are in the batch now."""
        names = self.runner.input_batch.req_ids
        known = {track.key: track for track in self.tracks}
        for name in known.keys() - set(names):
            self.slots.leave(known[name])
        self.tracks = [known.get(name) or self._enter(name) for name in names]

    def _enter(self, name: str) -> Track:
        request = self.runner.requests[name]
        settings = RequestSettings.read(request.sampling_params, self.settings.seed)
        return self.slots.enter(name, settings, request.prompt_token_ids or ())

    def _piece_rows(self, width: int, logits: Tensor) -> int:
        """How many rows of so many positions are decided at a time."""
        return max(1, _PIECE // (2 * width * self.settings.vocab * logits.element_size()))

    def _find_host(
        self, drafts: Sequence[int], scheduled: Sequence[int], live: Sequence[bool]
    ) -> Callable[[slice], Tensor] | None:
        """Of a slice of rows, the host's logits `[rows, k, vocab]` where the target's were read; None where it is not asked.

        Rows without a draft are read now. Behind a row's own draft stands anything.
        """
        if not self.keeps_drafts:
            return None
        drafter, names = self.runner.drafter, self.runner.input_batch.req_ids
        bare = [row for row, count in enumerate(drafts) if not count]
        undrafted: Tensor | None = None
        if any(live[row] for row in bare):
            undrafted = drafter.read_next(self.attention, scheduled)
        longest = max(1, *scheduled)

        def find(rows: slice) -> Tensor:
            some = range(*rows.indices(len(drafts)))
            places = place_numbers([drafter.kept_rows.get(names[row], 0) for row in some], self.slots.device)
            if drafter.kept and any(drafts):
                host = torch.stack([logits[places] for logits in drafter.kept[:longest]], 1)
            else:
                host = torch.zeros(len(some), longest, self.settings.vocab, device=self.slots.device)
            for own, row in enumerate(some):
                if drafts[row] and names[row] not in drafter.kept_rows:
                    host[own, : drafts[row]] = drafter.parked_logits(names[row], drafts[row])
                elif not drafts[row] and undrafted is not None:
                    host[own, 0] = undrafted[row]
            return host

        return find

    def _draw_undrafted(
        self, drafted: Tensor, drafts: Sequence[int], tracks: Sequence[Track], positions: Tensor, host: Tensor
    ) -> Tensor:
        """The drafted ids, and the host's draws at the first place of rows without a draft."""
        bare = [row for row, count in enumerate(drafts) if not count]
        if not bare:
            return drafted
        some = place_numbers(bare, drafted.device)
        drafted = drafted.clone()
        drafted[some, 0] = self.slots.draw([tracks[row] for row in bare], positions[some], host[some, 0])
        return drafted

    def rehearse(self, block: int) -> None:
        """Hold what a step of as many rows as may be holds, while vLLM measures its memory."""
        rows, dtype, device = self.slots.capacity, self.runner.dtype, self.slots.device
        read = torch.zeros(rows * (block + 1), self.settings.vocab, dtype=dtype, device=device)
        kept = [torch.zeros(rows, self.settings.vocab, dtype=dtype, device=device) for _ in range(block)]
        some = min(rows, self._piece_rows(block + 1, read))
        target = share(read[: some * (block + 1)].clone().view(some, block + 1, -1), self.settings.vocab)
        if not self.keeps_drafts:
            return self.slots.rehearse({self.verifying: target})
        host = share(torch.stack([one[:some] for one in kept], 1), self.settings.vocab)
        drafted = torch.zeros(some, block, dtype=torch.int64, device=device)
        self.slots.rehearse({self.drafting: host, self.verifying: target[:, :block]}, drafted=drafted)

    def _count(self, emitted: Tensor, drafted: Tensor, drafts: Sequence[int]) -> Tensor:
        """How many tokens stand of each row: up to the first that is not the drafted one, and a bonus for a lone guide."""
        counts = place_numbers(drafts, emitted.device)
        most = counts + 1 if not self.keeps_drafts else counts.clamp(min=1)
        longest = drafted.shape[1]
        same = (emitted[:, :longest] == drafted) & (torch.arange(longest, device=emitted.device) < counts[:, None])
        stands = torch.minimum(same.long().cumprod(1).sum(1) + 1, most)
        alone = place_numbers([track.settings.lockstep for track in self.tracks], emitted.device).bool()
        return torch.where(alone, stands.clamp(max=1), stands)


def _split(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _align(scheduled: Sequence[int], metadata: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the target's logits stand, `[rows, k + 1]`, and the drafted ids `[rows, k]`; behind a row's own draft, anything."""
    longest = max(scheduled)
    rows = torch.arange(len(scheduled), device=device)
    if not longest:
        return rows[:, None], torch.zeros(len(scheduled), 1, dtype=torch.int64, device=device)
    counts = place_numbers(scheduled, device)
    first = counts.cumsum(0) - counts  # of the row's drafts; its logits have one more for each row before it
    place = torch.arange(longest + 1, device=device)
    at = (first + rows)[:, None] + torch.minimum(place[None], counts[:, None])
    ids = metadata.draft_token_ids.long().clamp(min=0)
    return at, ids[(first[:, None] + place[None, :longest]).clamp(max=len(ids) - 1)]


def _count_drafted(scheduled: Sequence[int], metadata: Any) -> list[int]:
    """How many tokens were drafted of those that are scheduled: vLLM fills up with -1 what was drafted for nobody."""
    if not any(scheduled):
        return list(scheduled)
    ids = iter(metadata.draft_token_ids.tolist())
    counts = []
    for count in scheduled:
        row = [next(ids) for _ in range(count)]
        counts.append(next((place for place, token in enumerate(row) if token < 0), count))
    return counts
