"""Whether a calibration fits a run: the form of its prompts, its decoding, its dtypes. Checked before any token is written."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lm_eval_takeover.calibration.thresholds import Calibration
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.request import TASK_SAMPLING, Sampling
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)

_PROBE = "How many?"
_SETTINGS = ("temperature", "top_p", "top_k")  # of decoding; greedy reads the first alone


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """How a run asks. `sampling` is None if nothing is drawn, `chat_template` if the template adds nothing to a question."""

    task: str
    chat_template: bool | None
    sampling: Sampling | None


@dataclass(slots=True)
class CalibrationFit:
    """A calibration against what a run asks. `command(task=…, options=…)` makes one; `allowed`: differences are only notices."""

    calibration: Calibration
    pair: Pair
    enable_thinking: bool | None
    allowed: bool
    command: Callable[..., str]
    template_differs: bool = False  # known once the run has asked
    _said: set[str] = field(default_factory=set)

    def check(self, requests: Iterable[tuple[str, str, Sampling | None]]) -> None:
        """Compare with the `(task, prompt, sampling)` of each request. Raises CalibrationError that names both sides."""
        if self.calibration.source == "published":
            self._say_once(
                f"calibration '{self.calibration.name}' is read off a published table, which does not say its form of prompts, "
                f"decoding and dtypes; whether it fits this run is not known"
            )
            return
        forms: dict[str, bool | None] = {}
        by_form: dict[tuple[bool | None, Sampling | None], TaskRequest] = {}
        for task, prompt, sampling in requests:
            if prompt not in forms:
                forms[prompt] = self.pair.is_chat_prompt(prompt)
            by_form.setdefault((forms[prompt], sampling), TaskRequest(task, forms[prompt], sampling))
        for form in by_form.values():
            if differences := self.list_differences(form):
                measured, current = (" and ".join(side) for side in zip(*differences, strict=True))
                named = f"calibration '{self.calibration.name}' was measured with {measured}"
                command = self.command(task=form.task, options=self._options(form))
                self.refuse(f"{named}, and task {form.task} asks with {current}", f"make one that fits with `{command}`")

    def list_differences(self, request: TaskRequest) -> list[tuple[str, str]]:
        """`(calibration's, run's)` form of prompts and settings of decoding, where they differ."""
        return [*self._compare_prompts(request), *self._compare_decoding(request.sampling)]

    def refuse(self, text: str, advice: str = "give one that was measured on others, such as a train split") -> None:
        """Raise CalibrationError with this text and advice; a notice where a mismatch is allowed."""
        if not self.allowed:
            raise CalibrationError(f"{text}; {advice}, or pass allow_calibration_mismatch=True")
        self._say_once(f"{text}; used anyway")

    def _compare_prompts(self, request: TaskRequest) -> list[tuple[str, str]]:
        """`(calibration's, run's)` form of prompts, where they differ."""
        prompts = self.calibration.prompts
        chat, thinking = prompts["chat_template"], prompts["enable_thinking"]
        if request.chat_template is not None and chat != request.chat_template:
            names = {False: "raw prompts", True: "prompts in the chat template"}
            return [(names[chat], names[request.chat_template])]
        # A template's own default is one of the two modes, or it reads neither.
        message = [{"role": "user", "content": _PROBE}]
        rendered = (self.pair.chat_prompt(message, enable_thinking=each) for each in (thinking, self.enable_thinking))
        if not chat or thinking == self.enable_thinking or next(rendered) == next(rendered):
            return []
        return [(_describe_thinking(thinking), _describe_thinking(self.enable_thinking))]

    def _compare_decoding(self, sampling: Sampling | None) -> list[tuple[str, str]]:
        """`(calibration's, run's)` of each setting that differs; what greedy decoding does not read does not count."""
        decoding = self.calibration.decoding
        if sampling is None:
            return []
        names = _SETTINGS[:1] if 0 in (decoding["temperature"], sampling.temperature) else _SETTINGS
        pairs = [(name, decoding[name], getattr(sampling, name)) for name in names]
        return [(f"{name}={first:g}", f"{name}={second:g}") for name, first, second in pairs if not math.isclose(first, second)]

    def name_differences(self, tokens: int, samples: int) -> list[str]:
        """Differences of a run (of so many tokens and samples) from the calibration that are no error."""
        listed = sorted(self._said)
        if self.template_differs:
            listed.append("its prompts are in another template")
        written, measured = self.calibration.tokens or 0, self.calibration.rollouts or 0
        if written and samples and not 0.5 <= (ratio := tokens * measured / (samples * written)) <= 2:
            shorter = "shorter" if ratio < 1 else "longer"
            listed.append(f"its texts are {shorter} ({tokens / samples:,.0f} tokens, {written / measured:,.0f} there)")
        return listed

    def compare_dtypes(self) -> None:
        """Say where the weights, which this loads, have other dtypes."""
        for role, measured in self.calibration.dtypes.items():
            if (now := str(self.pair.member(role).model.dtype)) != measured:
                self._say_once(
                    f"calibration '{self.calibration.name}' was measured with the {role} in {measured}, and this run has it in "
                    f"{now}; its thresholds may be a little off"
                )

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def _options(self, request: TaskRequest) -> str:
        """The options of `calibrate` that make it fit."""
        options = []
        if request.chat_template:
            options.append("--apply_chat_template")
            if self.enable_thinking is not None:
                options.append(f"--enable_thinking {self.enable_thinking}")
        if request.sampling is not None:
            for name in _SETTINGS[:1] if request.sampling.temperature == 0 else _SETTINGS:
                value, usual = getattr(request.sampling, name), getattr(TASK_SAMPLING, name)
                if value != usual:
                    options.append(f"--{name} {value:g}")
        return "".join(f" {option}" for option in options)


def _describe_thinking(enabled: bool | None) -> str:
    return "the chat template's own thinking mode" if enabled is None else f"enable_thinking={enabled}"
