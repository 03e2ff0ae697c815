"""From model arguments to a loaded pair and a policy with its gate."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, get_type_hints

import torch
from tqdm import tqdm
from transformers.utils import logging as bars

from lm_eval_takeover.arguments import DEFAULT_POLICY, KINDS, METHOD, ModelArguments
from lm_eval_takeover.calibration import files
from lm_eval_takeover.calibration.thresholds import DEFAULT_RHO, KAPPA_RULES, Calibration, Target
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO
from lm_eval_takeover.errors import ArgumentError, CalibrationError, nearest
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.policy import BudgetParameter, Policy, policies
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.pair.calibration_check import CalibrationFit
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)

_BAR = "Loading weights"  # what transformers calls its bar, one per model


@dataclass(frozen=True, slots=True)
class GateOrigin:
    """Where a gate came from; None where it was set by hand. `fit` holds its calibration against what a run asks."""

    calibration: str | None = None
    spike_ratio: float | None = None
    kappa_rule: str | None = None
    target: Target | None = None
    fit: CalibrationFit | None = None


_shared: dict[str, Pair] | None = None


@contextlib.contextmanager
def share_pairs() -> Iterator[None]:
    """Meanwhile what is loaded alike is one pair, for several runs of one process that differ in their method alone."""
    global _shared
    _shared = {}
    try:
        yield
    finally:
        _shared = None


def load_pair(arguments: ModelArguments) -> Pair:
    """The pair of `_load_pair`; within `share_pairs` one for all arguments that differ in nothing that models are loaded by."""
    if _shared is None:
        return _load_pair(arguments)
    key = repr([getattr(arguments, name) for name, kind in KINDS.items() if kind.loads])
    return _shared.get(key) or _shared.setdefault(key, _load_pair(arguments))


def _load_pair(arguments: ModelArguments) -> Pair:
    """The models that the arguments name, the demo pair if none. Reads tokenizers and configurations; weights at first use."""
    names = {"base": arguments.base, "guide": arguments.guide}
    if names == {"base": None, "guide": None}:
        logger.warning("no base= and guide= are given: this is the bundled demo pair, which knows its own tasks only")
        names = {role: str(path) for role, path in DEMO.items()}
    missing = [role for role in policies.get(arguments.policy).models if names[role] is None]
    if missing:
        raise ArgumentError(
            f"{missing[0]} is missing: policy={arguments.policy} asks it; give {missing[0]}=<hub id or local folder>, "
            f"or policy=base or policy=guide for one model alone"
        )
    devices = resolve_devices(arguments)
    by_role = {role: arguments.for_role(role) for role in names}
    members = {
        role: Member(role, name, device=devices[role], dtype=_parse_dtype(role, by_role[role].dtype), given=by_role[role])
        for role, name in names.items()
        if name is not None
    }
    pair = Pair(members.get("base"), members.get("guide"))
    if arguments.max_length and pair.max_length and arguments.max_length > pair.max_length:
        logger.warning(
            "max_length=%d is more than the %d tokens that the models are made for; text beyond that may be noise",
            arguments.max_length, pair.max_length,
        )  # fmt: skip
    return pair


def load_weights(pair: Pair, roles: Sequence[str]) -> None:
    """Load the weights of these models, with one bar for all: a broken checkpoint is an error now, not hours later."""
    with one_loading_bar(len(roles)):
        for role in roles:
            _ = pair.member(role).model


@contextlib.contextmanager
def one_loading_bar(models: int) -> Iterator[None]:
    """Show one bar for the loading of so many models; other bars, of downloads, stay as they are."""
    quiet = models < 2 or not bars.is_progress_bar_enabled()
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
    with tqdm(total=models, desc=f"{_BAR} of {models} models", disable=quiet, bar_format=form) as bar:

        def make_bar(make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
            if quiet or options.get("desc") != _BAR:
                return make(*arguments, **options)
            return _count_shares(list(arguments[0]), bar)

        previous = bars.set_tqdm_hook(make_bar)
        try:
            yield
        finally:
            bars.set_tqdm_hook(previous)


def _count_shares(items: list[Any], bar: Any) -> Iterator[Any]:
    """These items, each of which moves the bar by its share of one model."""
    before = round(bar.n)
    for number, item in enumerate(items, 1):
        yield item
        bar.n = before + number / len(items)  # exact, where a sum of shares may pass the total
        bar.update(0)


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


def check_arguments(values: dict[str, Any]) -> None:
    """Check lm-eval's keyword arguments as far as possible without the models. Raises a TakeoverError."""
    arguments = parse_arguments(values)
    resolve_devices(arguments)
    method = open_method(arguments)
    refuse_unread_calibration(arguments, method)
    is_demo = arguments.base is arguments.guide is None and arguments.direction == "forward"
    if arguments.calibration is not None or is_demo:
        calibration, column = files.find_calibration(arguments.calibration or "demo")
        if _reads_calibration(arguments, method):
            _read_calibration(arguments, method, calibration, column)


def load_policy(arguments: ModelArguments, pair: Pair) -> tuple[Policy, GateOrigin]:
    """The policy with its gate, or another budget parameter: set by hand, or read off the calibration of this pair."""
    method = open_method(arguments)
    policy = method.policy
    refuse_unread_calibration(arguments, method)
    if _reads_calibration(arguments, method):
        command, allowed = _make_command(arguments, method), arguments.allow_calibration_mismatch
        calibration, column = _find_calibration(arguments, pair, policy, command)
        policy, origin = _read_calibration(arguments, method, calibration, column)
        if (target := origin.target) is not None and not target.is_reached:
            nearest_rate = target.target_rate, target.name, 100 * target.realized_rate
            logger.warning("target_rate=%g: the nearest rate that %s can reach is %.1f%%", *nearest_rate)
        fit = CalibrationFit(calibration, pair, arguments.enable_thinking, allowed, command)
        return policy, replace(origin, fit=fit)
    if isinstance(policy, Gated):
        tau = 0.0 if arguments.tau is None else arguments.tau  # scores that are 0 or 1 have no threshold
        policy = replace(policy, gate=Gate(tau, arguments.kappa or 0.0, arguments.window))
    return policy, GateOrigin()


def refuse_unread_calibration(arguments: ModelArguments, method: Method) -> None:
    """Raises ArgumentError for a calibration, or a rate to solve for, beside a budget parameter that is set by hand."""
    parameter = method.policy.budget_parameter
    if parameter is None or parameter.name == SPIKE_RATIO:
        return
    given = (arguments.differing() | dict(arguments.policy_arguments)).get(parameter.name)
    if arguments.target_rate is not None and given is not None:
        raise ArgumentError(f"give target_rate={arguments.target_rate} or {parameter.name}={given}, not both")
    if arguments.target_rate is None and arguments.calibration is not None:
        named = f"calibration='{arguments.calibration}'"
        raise ArgumentError(f"{named} is read with target_rate=… by policy={method.policy.name}; leave it out, or give that")


def _reads_calibration(arguments: ModelArguments, method: Method) -> bool:
    policy = method.policy
    if isinstance(policy, Gated) and arguments.tau is None and not policy.scorer.binary:
        return True
    return arguments.target_rate is not None and policy.budget_parameter is not None


def _make_command(arguments: ModelArguments, method: Method) -> Callable[..., str]:
    """A function that writes the command for the calibration that these arguments need."""
    rate = arguments.target_rate
    solving = "" if rate is None else files.name_rate(rate, method.settings, arguments.plugins)
    names = arguments.base, arguments.guide, arguments.direction, CALIBRATION_PROMPTS
    return partial(files.calibration_command, *names, solving=solving)


def parse_arguments(values: dict[str, Any]) -> ModelArguments:
    """lm-eval's keyword arguments, those of the chosen policy's own fields among them. Runs the plug-ins that they name."""
    plugins = values.get("plugins")
    load_plugins(None if plugins is None else str(plugins))
    kind = policies.get(str(values.get("policy") or DEFAULT_POLICY))
    hints = get_type_hints(kind)
    shared = {"gate", *(field.name for field in fields(ModelArguments))}
    return ModelArguments.parse(values, {f.name: hints[f.name] for f in fields(kind) if f.name not in shared})


def _read_calibration(
    arguments: ModelArguments, method: Method, calibration: Calibration, column: int | None
) -> tuple[Policy, GateOrigin]:
    """The policy with what its budget parameter is by this calibration. Raises a TakeoverError where that is not known."""
    policy, rule, rate = method.policy, method.kappa_rule, arguments.target_rate
    command = _make_command(arguments, method)
    if calibration.source == "published" and isinstance(policy, Gated):
        number = _choose_column(arguments, calibration, column, policy.score, command())
        threshold = calibration.published(policy.score, number)
        gate = Gate(threshold.tau, threshold.kappa(rule), arguments.window)
        return replace(policy, gate=gate), GateOrigin(f"{calibration.name}:{number}", None, rule)
    if column is not None:
        named = f"calibration='{calibration.name}:{column}'"
        raise ArgumentError(f"{named}: only published calibrations have columns; choose spike_ratio=… instead")
    value = DEFAULT_RHO if arguments.spike_ratio is None else arguments.spike_ratio
    target = None if rate is None else files.find_target(calibration, rate, method.settings, command)
    if target is not None:
        value = target.value
    rho, kappa_rule = (value, rule) if method.budget_parameter.name == SPIKE_RATIO else (None, None)
    return method.at(value, calibration), GateOrigin(calibration.name, rho, kappa_rule, target)


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


def _find_calibration(
    arguments: ModelArguments, pair: Pair, policy: Policy, command: Callable[[], str]
) -> tuple[Calibration, int | None]:
    """The calibration that is named, or the packaged one of this pair. Raises CalibrationError where it is of another pair."""
    base, guide = pair.member("base").id, pair.member("guide").id
    if arguments.calibration is None:
        packaged = files.matching_calibrations(files.packaged_calibrations().values(), base, guide, policy.direction)
        if not packaged:
            raise CalibrationError(
                f"no packaged calibration for base={base.id} and guide={guide.id} with direction={policy.direction}; "
                f"make one with `{command()}` (and --apply_chat_template where the run has it) and pass "
                f"that file as calibration=…"
            )
        return packaged[0], None
    calibration, column = files.find_calibration(arguments.calibration)
    problems = []
    if not files.is_for_pair(calibration, base, guide):
        problems.append(f"base={calibration.base} and guide={calibration.guide}, not base={base} and guide={guide}")
    elif calibration.vocabulary and calibration.vocabulary.get("digest") != pair.vocabulary.digest:
        problems.append("another shared vocabulary (its digest differs)")
    if calibration.direction != policy.direction:
        problems.append(f"direction={calibration.direction}, not {policy.direction}")
    score = policy.scorer
    plugin = calibration.plugin(score.name) if score is not None else None
    if score is not None and plugin is not None and plugin["digest"] != score.source.digest:
        problems.append(f"score={score.name} of {plugin['source']} as it was then, not as in {score.source.name} now")
    if problems and not arguments.allow_calibration_mismatch:
        raise CalibrationError(
            f"calibration='{arguments.calibration}' was made for {' and for '.join(problems)}; make one with "
            f"`{command()}`, or pass allow_calibration_mismatch=True"
        )
    for problem in problems:
        logger.warning("calibration '%s' was made for %s; used anyway", arguments.calibration, problem)
    return calibration, column


def resolve_devices(arguments: ModelArguments) -> dict[str, str]:
    """The device of each model. Raises ArgumentError for one that is not there."""
    device = _resolve_device("device", arguments.device)
    return {"base": device, "guide": _resolve_device("guide_device", arguments.guide_device or device)}


def _resolve_device(argument: str, device: str | None) -> str:
    """The device to load onto; None is the GPU where there is one. Raises ArgumentError for one that is not there."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"{argument}='{device}': torch finds no GPU; give cpu, or install a torch with CUDA")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            f"{argument}='{device}': torch {torch.__version__} cannot use it here; give cpu or cuda:0"
        ) from error
    return str(device)


def _parse_dtype(role: str, dtype: str) -> str | torch.dtype:
    if dtype == "auto":
        return dtype
    parsed = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(parsed, torch.dtype):
        argument = "guide_dtype" if role == "guide" else "dtype"
        raise ArgumentError(f"{argument}='{dtype}' is not known; expected auto, float32, bfloat16 or float16")
    return parsed
