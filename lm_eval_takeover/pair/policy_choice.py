"""From model arguments to a policy with its gate, or another budget parameter: by hand, from a published table or a calibration.

A calibration fits a run by the form of its prompts, its decoding and its dtypes (`CalibrationFit`), before a token is written.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, get_type_hints

from lm_eval_takeover.arguments import DEFAULT_POLICY, KINDS, METHOD, ModelArguments
from lm_eval_takeover.calibration import files
from lm_eval_takeover.calibration.commands import NO_TASK, RunTask, calibration_command
from lm_eval_takeover.calibration.files import DEFAULT_RHO, KAPPA_RULES, Calibration, Target
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.demo import prompts_for
from lm_eval_takeover.errors import ArgumentError, CalibrationError, nearest
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.policy import BudgetParameter, Policy, policies
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.method.request import TASK_SAMPLING, Sampling
from lm_eval_takeover.pair.pair import Pair, resolve_devices

logger = logging.getLogger(__name__)

_PROBE = "How many?"
_SETTINGS = ("temperature", "top_p", "top_k", "min_p")  # of decoding; greedy reads the first alone


@dataclass(slots=True)
class CalibrationFit:
    """A calibration against what a run asks. `command(task=…, options=…)` makes one; `allowed`: differences are only notices.

    `chat` says whether a prompt is in the chat template, None where that adds nothing to a question. `sampling` is None if
    nothing is drawn.
    """

    calibration: Calibration
    pair: Pair
    enable_thinking: bool | None
    allowed: bool
    command: Callable[..., str]
    _said: dict[str, str] = field(default_factory=dict)  # notices, and how results name them

    def check(self, requests: Iterable[tuple[str, str, Sampling | None]]) -> None:
        """Compare with the `(task, prompt, sampling)` of each request. Raises CalibrationError that names both sides."""
        if self.calibration.source == "published":
            self._say_once(
                f"calibration '{self.calibration.name}' is read off a published table, which does not say its form of prompts, "
                f"decoding and dtypes; whether it fits this run is not known"
            )
            return
        forms: dict[str, bool | None] = {}
        by_form: dict[tuple[bool | None, Sampling | None], str] = {}  # the first task
        for task, prompt, sampling in requests:
            if prompt not in forms:
                forms[prompt] = self.pair.is_chat_prompt(prompt)
            by_form.setdefault((forms[prompt], sampling), task)
        for form, task in by_form.items():
            if differences := self.list_differences(*form):
                measured, current = (" and ".join(side) for side in zip(*differences, strict=True))
                named = f"calibration '{self.calibration.name}' was measured with {measured}"
                command = self.command(task=task, options=self._options(*form), known=self.calibration)
                self.refuse(f"{named}, and task {task} asks with {current}", f"make one that fits with `{command}`")

    def list_differences(self, chat: bool | None, sampling: Sampling | None) -> list[tuple[str, str]]:
        """`(calibration's, run's)` form of prompts and settings of decoding, where they differ."""
        differences, decoding = self._compare_prompts(chat), self.calibration.decoding
        if sampling is None:
            return differences
        names = _SETTINGS[:1] if 0 in (decoding["temperature"], sampling.temperature) else _SETTINGS
        pairs = [(name, decoding.get(name, 0), getattr(sampling, name)) for name in names]
        changed = [(f"{name}={then:g}", f"{name}={now:g}") for name, then, now in pairs if not math.isclose(then, now)]
        return differences + changed

    def refuse(self, text: str, advice: str = "give one that was measured on others, such as a train split") -> None:
        """Raise CalibrationError with this text and advice; a notice where a mismatch is allowed."""
        if not self.allowed:
            raise CalibrationError(f"{text}; {advice}, or pass allow_calibration_mismatch=True")
        self._say_once(f"{text}; used anyway")

    def _compare_prompts(self, chat: bool | None) -> list[tuple[str, str]]:
        prompts = self.calibration.prompts
        measured, thinking = prompts["chat_template"], prompts["enable_thinking"]
        if chat is not None and measured != chat:
            names = {False: "raw prompts", True: "prompts in the chat template"}
            return [(names[measured], names[chat])]
        # A template's own default is one of the two modes, or it reads neither.
        message = [{"role": "user", "content": _PROBE}]
        rendered = (self.pair.chat_prompt(message, enable_thinking=each) for each in (thinking, self.enable_thinking))
        if not measured or thinking == self.enable_thinking or next(rendered) == next(rendered):
            return []
        return [(_describe_thinking(thinking), _describe_thinking(self.enable_thinking))]

    def name_differences(self, tokens: int, samples: int) -> list[str]:
        """Differences of a run (of so many tokens and samples) from the calibration that are no error."""
        listed = sorted(self._said.values())
        written, measured = self.calibration.tokens or 0, self.calibration.rollouts or 0
        if written and samples and not 0.5 <= (ratio := tokens * measured / (samples * written)) <= 2:
            shorter = "shorter" if ratio < 1 else "longer"
            listed.append(f"its texts are {shorter} ({tokens / samples:,.0f} tokens, {written / measured:,.0f} there)")
        return listed

    def compare_template(self, differs: bool) -> None:
        if differs:
            told = "its prompts are in another template"
            self._say_once(f"calibration '{self.calibration.name}' differs from this run: {told}", told)

    def compare_weights(self) -> None:
        for role, dtype in self.calibration.dtypes.items():
            member = self.pair.member(role)
            measured = _describe_weights(dtype, self.calibration.quantization.get(role, {}))
            if (now := _describe_weights(member.weights.dtype, member.given.quantization)) != measured:
                self._say_once(
                    f"calibration '{self.calibration.name}' was measured with the {role} in {measured}, and this run has it in "
                    f"{now}; its thresholds may be a little off"
                )

    def _say_once(self, text: str, name: str = "") -> None:
        if text not in self._said:
            self._said[text] = name or text
            logger.warning("%s", text)

    def _options(self, chat: bool | None, sampling: Sampling | None) -> dict[str, Any]:
        """Those of `calibrate` that make its prompts and its decoding the run's."""
        options = {"apply_chat_template": True, "enable_thinking": self.enable_thinking} if chat else {}
        if sampling is None:
            return options
        names = _SETTINGS[:1] if sampling.temperature == 0 else _SETTINGS
        values = {name: getattr(sampling, name) for name in names}
        return options | {name: value for name, value in values.items() if value != getattr(TASK_SAMPLING, name)}


def _describe_thinking(enabled: bool | None) -> str:
    return "the chat template's own thinking mode" if enabled is None else f"enable_thinking={enabled}"


def _describe_weights(dtype: str, quantization: Mapping[str, Any]) -> str:
    return " with ".join([dtype, *(f"{name}={value}" for name, value in quantization.items())])


@dataclass(frozen=True, slots=True)
class GateOrigin:
    """Where a gate came from; None where it was set by hand. `fit` holds its calibration against what a run asks."""

    calibration: str | None = None
    spike_ratio: float | None = None
    kappa_rule: str | None = None
    target: Target | None = None
    fit: CalibrationFit | None = None


def reads_calibration(arguments: ModelArguments, method: Method) -> bool:
    """Whether these arguments need one. Raises ArgumentError for one beside a budget parameter that is set by hand."""
    policy, parameter, rate = method.policy, method.policy.budget_parameter, arguments.target_rate
    if parameter is not None and parameter.name != SPIKE_RATIO:
        given = arguments.differing().get(parameter.name)
        if rate is not None and given is not None:
            raise ArgumentError(f"give target_rate={rate} or {parameter.name}={given}, not both")
        if rate is None and arguments.calibration is not None:
            named = f"calibration='{arguments.calibration}'"
            raise ArgumentError(f"{named} is read with target_rate=… by policy={policy.name}; leave it out, or give that")
    if isinstance(policy, Gated) and arguments.tau is None and not policy.scorer.binary:
        return True
    return rate is not None and parameter is not None


def choose_gate(
    arguments: ModelArguments, method: Method, command: Callable[..., str], found: tuple[Calibration, int | None] | None = None
) -> tuple[Policy, GateOrigin]:
    """The policy with its gate, or another budget parameter, in four cases.

    by hand        without a calibration: `tau` and `kappa`, or what the policy has by itself
    published      a column of a printed table, which must be named
    spike ratio    tau and kappa at this share of the calibration's scores
    target rate    the value that the calibration solved for it

    Raises a TakeoverError where the calibration does not say it, with the `command` that makes one.
    """
    policy, rule, rate = method.policy, method.kappa_rule, arguments.target_rate
    if found is None:
        if isinstance(policy, Gated):  # scores that are 0 or 1 have no threshold
            policy = replace(policy, gate=Gate(arguments.tau or 0.0, arguments.kappa or 0.0, arguments.window))
        return policy, GateOrigin()
    calibration, column = found
    if calibration.source == "published" and isinstance(policy, Gated):
        number = _choose_column(arguments, calibration, column, policy.score, command())
        threshold = calibration.published(policy.score, number)
        gate = Gate(threshold["tau"], threshold[f"kappa_{rule}"], arguments.window)
        return replace(policy, gate=gate), GateOrigin(f"{calibration.name}:{number}", None, rule)
    if column is not None:
        named = f"calibration='{calibration.name}:{column}'"
        raise ArgumentError(f"{named}: only published calibrations have columns; choose spike_ratio=… instead")
    if rate is None:
        rho = DEFAULT_RHO if arguments.spike_ratio is None else arguments.spike_ratio
        return method.at(rho, calibration), GateOrigin(calibration.name, rho, rule)
    argument = method.budget_parameter.name
    target = files.find_target(calibration, rate, method.settings, argument, command)
    solved, kappa_rule = (target.value, rule) if argument == SPIKE_RATIO else (None, None)
    return method.at(target.value, calibration), GateOrigin(calibration.name, solved, kappa_rule, target)


def _choose_column(arguments: ModelArguments, table: Calibration, column: int | None, score: str, command: str) -> int:
    """The column of a published table. Raises ArgumentError where none is named, and for what only a spike ratio could answer."""
    if arguments.kappa_rule == "tail_to_mean":
        raise ArgumentError(f"kappa_rule=tail_to_mean: published '{table.name}' holds threshold_to_mean only")
    values = {name: getattr(arguments, name) for name in ("spike_ratio", "target_rate")}
    words = [f"{name}={value}" for name, value in values.items() if value is not None]
    if column is not None and not words:
        return column
    raise ArgumentError(
        f"{words[0] if words else 'calibration'}: '{table.name}' is a published table, and the spike ratios of its "
        f"columns are not known; calibrate this pair with `{command}` and pass that file as calibration=…, or choose a "
        f"column (strictest first) by calibration=NAME:COLUMN{' alone' if words else ''}: {table.list_columns(score)}"
    )


def make_command(arguments: ModelArguments, method: Method, task: RunTask) -> Callable[..., str]:
    """A function that writes the command for the calibration that these arguments need."""
    solving: dict[str, Any] = {}
    if arguments.target_rate is not None:
        word = f"{files.name_method(method.settings)}@{arguments.target_rate:g}"
        solving = {"methods": [word], "plugins": arguments.plugins}
    return partial(calibration_command, arguments, prompts_for(task.task or ""), solving=solving, **task._asdict())


def find_fitting_calibration(
    arguments: ModelArguments, pair: Pair, method: Method, command: Callable[..., str]
) -> tuple[Calibration, int | None]:
    """The calibration that is named, or the packaged one of this pair. Raises CalibrationError where it is of another pair."""
    base, guide = pair.member("base").id, pair.member("guide").id
    policy = method.policy
    if arguments.calibration is None:
        packaged = files.find_packaged(base, guide, policy.direction)
        if packaged is None:
            raise CalibrationError(
                f"no packaged calibration for base={base.id} and guide={guide.id} with direction={policy.direction}; "
                f"make one with `{command()}` (and --apply_chat_template where the run has it) and pass "
                f"that file as calibration=…"
            )
        return packaged, None
    calibration, column = files.find_calibration(arguments.calibration)
    problems = []
    if not files.is_for_pair(calibration, base, guide):
        problems.append(f"base={calibration.base} and guide={calibration.guide}, not base={base} and guide={guide}")
    elif calibration.vocabulary and calibration.vocabulary.get("digest") != pair.vocabulary.digest:
        problems.append("another shared vocabulary (its digest differs)")
    if calibration.direction != policy.direction:
        problems.append(f"direction={calibration.direction}, not {policy.direction}")
    held = calibration.scores.get(score.name) if (score := policy.scorer) else None
    plugin = held.plugin if held else None  # None for our own scores
    if score and plugin and plugin["digest"] != score.source.digest:
        problems.append(f"score={score.name} of {plugin['source']} as it was then, not as in {score.source.name} now")
    if problems and not arguments.allow_calibration_mismatch:
        raise CalibrationError(
            f"calibration='{arguments.calibration}' was made for {' and for '.join(problems)}; make one with "
            f"`{command(known=calibration)}`, or pass allow_calibration_mismatch=True"
        )
    for problem in problems:
        logger.warning("calibration '%s' was made for %s; used anyway", arguments.calibration, problem)
    return calibration, column


# The policy

# Arguments of the method that some policies read and others do not.
OF_METHODS = tuple(
    name for name, kind in KINDS.items() if kind is METHOD and name not in ("policy", "plugins", "policy_arguments")
)


def keep_read(values: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """These arguments without those of the method that this policy does not read: for several policies of one command."""
    reads = policies.get(policy).reads()
    return {name: value for name, value in values.items() if name in reads or name not in OF_METHODS}


def refuse_unread(arguments: ModelArguments, kind: type[Policy]) -> None:
    """Raises ArgumentError for an argument that this policy does not read, with the policies that do."""
    for name, value in arguments.differing().items():
        if name in OF_METHODS and name not in kind.reads():
            readers = [other.name for other in policies if name in other.reads()]
            named = f"{', '.join(readers[:-1])} or {readers[-1]}" if len(readers) > 1 else readers[0]
            raise ArgumentError(f"{name}={value} is read by policy={named}, not {kind.name}; leave it out")


def open_method(arguments: ModelArguments) -> Method:
    """The policy of the arguments, gate and `target_rate` still open. Raises ArgumentError for what is wrong without models."""
    kind = policies.get(arguments.policy)
    refuse_unread(arguments, kind)
    own = {name: getattr(arguments, name) for name in OF_METHODS if name in {field.name for field in fields(kind)}}
    values = own | dict(arguments.policy_arguments)
    settings = {name: value for name, value in values.items() if value is not None}
    by_hand = [name for name in ("tau", "spike_ratio") if getattr(arguments, name) is not None]
    if isinstance(kind.budget_parameter, BudgetParameter) and arguments.target_rate is not None:
        settings.setdefault(kind.budget_parameter.name, kind.budget_parameter.high)  # until it is calibrated
    policy = kind(**settings)
    if isinstance(policy, Gated) and policy.scorer.binary and by_hand and arguments.tau != 0:  # 0 is its gate's
        setting = f"{by_hand[0]}={getattr(arguments, by_hand[0])}"
        raise ArgumentError(f"{setting}: score={policy.score} is 0 or 1 and has no threshold; give chance=…")
    if isinstance(policy, Gated) and arguments.tau is arguments.target_rate is None and policy.score_top_p != 1:
        raise ArgumentError(f"score_top_p={policy.score_top_p} needs target_rate=…, or tau=… and kappa=…")
    rule = arguments.kappa_rule or KAPPA_RULES[0]
    if rule not in KAPPA_RULES:
        raise ArgumentError(f"kappa_rule='{rule}' is not known; {nearest(rule, KAPPA_RULES)}")
    return Method(policy, rule, arguments.window)


def check_arguments(values: dict[str, Any], task: RunTask = NO_TASK) -> None:
    """Check lm-eval's keyword arguments as far as possible without the models. Raises a TakeoverError."""
    arguments = parse_arguments(values)
    resolve_devices(arguments)
    method = open_method(arguments)
    is_read = reads_calibration(arguments, method)
    is_demo = arguments.base is arguments.guide is None and arguments.direction == "forward"
    if arguments.calibration is not None or is_demo:
        found = files.find_calibration(arguments.calibration or "demo")
        if is_read:
            choose_gate(arguments, method, make_command(arguments, method, task), found)


def load_policy(arguments: ModelArguments, pair: Pair, task: RunTask = NO_TASK) -> tuple[Policy, GateOrigin]:
    """The policy with its gate, or another budget parameter: set by hand, or read off the calibration of this pair."""
    method = open_method(arguments)
    command = make_command(arguments, method, task)
    if not reads_calibration(arguments, method):
        return choose_gate(arguments, method, command)
    found = find_fitting_calibration(arguments, pair, method, command)
    policy, origin = choose_gate(arguments, method, command, found)
    if (target := origin.target) is not None and not target.is_reached:
        nearest_rate = target.target_rate, target.name, 100 * target.nearest_rate
        logger.warning("target_rate=%g: the nearest rate that %s can reach is %.1f%%", *nearest_rate)
    elif target is not None:
        told = target.target_rate, target.describe_rate(), target.prompts
        logger.info("target_rate=%g: realized %s on %d held-out prompts of the calibration", *told)
    fit = CalibrationFit(found[0], pair, arguments.enable_thinking, arguments.allow_calibration_mismatch, command)
    return policy, replace(origin, fit=fit)


def parse_arguments(values: dict[str, Any]) -> ModelArguments:
    """lm-eval's keyword arguments, those of the chosen policy's own fields among them. Runs the plug-ins that they name."""
    plugins = values.get("plugins")
    load_plugins(None if plugins is None else str(plugins))
    kind = policies.get(str(values.get("policy") or DEFAULT_POLICY))
    hints = get_type_hints(kind)
    shared = {"gate", *(field.name for field in fields(ModelArguments))}
    return ModelArguments.parse(values, {f.name: hints[f.name] for f in fields(kind) if f.name not in shared})
