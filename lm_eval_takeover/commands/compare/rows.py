"""The rows of a comparison: each a name, a rate, and the model arguments that `lm_eval` runs it with, in one call or several."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lm_eval._cli.utils import handle_cli_value_string

from lm_eval_takeover.arguments import DEFAULT_POLICY, KINDS, TWINS, ModelArguments
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands.compare.comparison import ALONE, GUIDED, Comparison
from lm_eval_takeover.commands.compare.worker import LM_EVAL, Call
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.named import THINKING, Named, find_policy
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.pair.policy_choice import keep_read, open_method, parse_arguments
from lm_eval_takeover.results.kept_rows import ComparedRow
from lm_eval_takeover.storage.files import make_component

LEADERS = (GUIDED, "ce")  # whose realized rates the rows that follow take
_OF_LM_EVAL = ("batch_size", "device")  # model arguments that are options of its own
_BY_HAND = ("tau", "spike_ratio", "early_tokens")  # they replace a rate, as each method's budget parameter does


@dataclass(frozen=True, eq=False)
class PlannedRow(ComparedRow):
    """A row that can be run. The `rate` of one that follows is not in its arguments yet."""

    arguments: ModelArguments = field(kw_only=True)
    method: Method = field(kw_only=True)

    @property
    def is_calibrated(self) -> bool:
        """Whether a calibration says where its gate is, or what else sets its rate."""
        return self.arguments.target_rate is not None or self.arguments.spike_ratio is not None


def plan_rows(asked: Comparison) -> list[PlannedRow]:
    """`--rows` at their rates, in their order. Raises ArgumentError for a row that cannot be run."""
    has_leader = any(word.name in LEADERS for word in asked.rows)
    rows = [row for word in asked.rows for row in _expand(word, asked, has_leader)]
    labels = [row.label for row in rows]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise ArgumentError(f"--rows names {repeated} twice")
    return rows


def _expand(named: Named, asked: Comparison, has_leader: bool) -> Iterator[PlannedRow]:
    """One row for each rate. Raises ArgumentError."""
    given = {name: handle_cli_value_string(value) for name, value in named.arguments.items()}
    label = make_component("-".join([named.name, *(f"{name}-{value}" for name, value in named.arguments.items())]))
    if named.name in ALONE and "policy" in given:
        raise ArgumentError(f"--rows {named.name}: policy={given['policy']} makes it another row; name that one")
    own = (ALONE.get(named.name) or find_policy("rows", "ce" if named.name == GUIDED else named.name)) | given
    everyone = asked.arguments
    if named.name == THINKING:  # another model than the pair's: without what belongs to their repositories, or to the guide
        label, theirs = THINKING, {*TWINS.values(), *(name for name, kind in KINDS.items() if kind.own)}
        everyone = {name: value for name, value in everyone.items() if name not in theirs}
    shared, reads = keep_read(everyone, own["policy"]), policies.get(own["policy"]).reads()
    # The rate is solved for, or, as of `random` and `early`, an argument of the policy itself.
    argument = next((name for name in ("target_rate", "rate") if name in reads), "")
    by_hand = not argument or any(name in own for name in (argument, *_BY_HAND))
    method = open_method(parse_arguments({**shared, **own} | ({} if by_hand else {argument: 0.5})))
    if argument == "target_rate":
        parameter = method.policy.budget_parameter
        by_hand = by_hand or parameter is None or parameter.name in own
    if by_hand and named.rates:
        reason = "its arguments set already how many tokens are taken over"
        if not argument:
            reason = f"policy={method.policy.name} has no budget_parameter that a rate could be solved by"
        raise ArgumentError(f"--rows {named.name}@{named.rates[0]:g}: {reason}; leave the rate out")
    rates = () if by_hand else named.rates or (asked.rates if named.name != GUIDED else ())
    follows = not (by_hand or rates) and named.name in ("random", "early") and has_leader
    method_name = own.get("score", "ce") if own["policy"] == DEFAULT_POLICY else own["policy"]
    told = {key: shared[key] for key in ("score_top_p",) if key in shared} | dict(named.arguments)
    word = label if named.name in ALONE else ":".join([method_name, *(f"{key}={value}" for key, value in told.items())])
    policy = method.policy
    roles = (None, None, False) if named.name in ALONE else (policy.host, policy.donor, policy.mixes)
    for rate in rates or [None if by_hand or follows else asked.target_rate]:
        at = f"{label}@{rate:g}" if rates else label
        arguments = _parse(asked, at, everyone, own if rate is None else own | {argument: rate})
        yield PlannedRow(at, named.name, rate, follows, word, None, *roles, arguments=arguments, method=method)


def _parse(asked: Comparison, label: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> ModelArguments:
    """The arguments of a row: of the shared ones those that its policy reads, and its own. Raises ArgumentError."""
    place = {"model": label, "run_dir": asked.run_dir / label / "samples"}
    return parse_arguments({**keep_read(shared, own["policy"]), **own, **place})


def plan_calls(
    asked: Comparison, row: PlannedRow, calibration: str | None, followed: Mapping[str, float] | None = None
) -> list[Call]:
    """The calls of one row: one, or for a row that follows one for each task, whose rates `followed` has."""
    folder, calls = asked.run_dir / row.label, []
    arguments = replace(row.arguments, calibration=calibration) if row.is_calibrated else row.arguments
    parts = [(asked.tasks, arguments, "results", "lm_eval.log")]
    if row.follows:
        at = {task: replace(arguments, rate=rate) for task, rate in (followed or {}).items()}
        parts = [([task], at[task], f"results/{task}", f"lm_eval-{task}.log") for task in at]
    for tasks, given, results, log in parts:
        values = given.differing()
        own = {name: values.pop(name) for name in _OF_LM_EVAL if name in values}
        options = {"model": "guided-takeover", "model_args": values, "tasks": tasks, **asked.harness, **own}
        options |= {"output_path": str(folder / results), "log_samples": True}
        alone = row.name == THINKING or given.backend != "hf"
        calls.append(Call(row.label, LM_EVAL, options, folder / log, alone))
    return calls
