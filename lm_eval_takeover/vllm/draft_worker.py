"""vLLM's worker of this platform whose runner drafts for the gate: `worker_cls` of an engine with drafts."""

from vllm.platforms import current_platform

from lm_eval_takeover.vllm.worker import WorkerExtension

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class TakeoverWorker(PlatformWorker, WorkerExtension):  # type: ignore[misc]
    """Drafts and the gate of the runner that vLLM has chosen."""

    def init_device(self) -> None:
        super().init_device()
        runner = self.model_runner
        if self.use_v2_model_runner:
            from lm_eval_takeover.vllm.speculator import TakeoverSpeculator

            runner.speculator = TakeoverSpeculator(self.vllm_config, self.device)
        else:
            from lm_eval_takeover.vllm.blockwise import gate_drafts

            block = self.vllm_config.speculative_config.num_speculative_tokens
            runner.takeover_slots = gate_drafts(runner, block)
