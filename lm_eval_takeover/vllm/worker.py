"""What the process of the user asks vLLM's workers: `worker_extension_cls`, called through `collective_rpc`."""

from typing import Any

from lm_eval_takeover.vllm.slots import Slots


class WorkerExtension:
    """Methods that every worker gets beside its own."""

    model_runner: Any

    def takeover_slots(self) -> Slots:
        """The state of this worker's gate. Raises RuntimeError where the engine runs without one."""
        runner = self.model_runner
        for holder in (runner, getattr(runner, "model_state", None)):  # drafts on model runner V1; V2
            if (slots := getattr(holder, "takeover_slots", None)) is not None:
                return slots  # type: ignore[no-any-return]
        for processor in runner.input_batch.logitsprocs.non_argmax_invariant:
            if (slots := getattr(processor, "slots", None)) is not None:
                return slots  # type: ignore[no-any-return]
        raise RuntimeError("no gate runs in this engine")

    def takeover_calls(self) -> int:
        """How many passes the gate has seen: 0 where nothing was gated."""
        return self.takeover_slots().calls

    def take_takeover_records(self, counts: dict[str, int]) -> dict[str, tuple[bytes, dict[str, int]] | None]:
        """The records of so many positions of these requests, and their passes, which are forgotten here then."""
        slots = self.takeover_slots()
        return {request_id: slots.take(request_id, count) for request_id, count in counts.items()}

    def read_takeover_records(
        self, wishes: list[tuple[str, int, int, bool]]
    ) -> list[tuple[bytes, dict[str, int]] | None]:
        """For each `(request, start, stop, last)` the records of these positions, and its passes; `last` forgets them."""
        slots = self.takeover_slots()
        return [slots.take(name, stop) if last else slots.read(name, start, stop) for name, start, stop, last in wishes]
