"""From model arguments to a loaded pair and a policy; `gate_choice` finds its gate."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

import torch

from lm_eval_takeover.arguments import DEFAULT_POLICY, KINDS, METHOD, ModelArguments
from lm_eval_takeover.calibration import files
from lm_eval_takeover.calibration.commands import NO_TASK, RunTask
from lm_eval_takeover.calibration.files import KAPPA_RULES
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.policy import BudgetParameter, Policy, policies
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.pair.gate_choice import (
    CalibrationFit,
    GateOrigin,
    choose_gate,
    find_fitting_calibration,
    make_command,
    reads_calibration,
)
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)

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


def resolve_devices(arguments: ModelArguments) -> dict[str, str]:
    """The device of each model. Raises ArgumentError for one that is not there."""
    if not (opens := arguments.backend != "vllm"):  # a GPU that allows a single process would be lost to the engine
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks the driver alone
    device = _resolve_device("device", arguments.device, opens)
    return {"base": device, "guide": _resolve_device("guide_device", arguments.guide_device or device, opens)}


def _resolve_device(argument: str, device: str | None, opens: bool) -> str:
    """The device to load onto; None is the GPU where there is one. Raises ArgumentError for one that is not there."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"{argument}='{device}': torch finds no GPU; give cpu, or install a torch with CUDA")
    try:
        _ = torch.empty(0, device=device) if opens else torch.device(device)
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
