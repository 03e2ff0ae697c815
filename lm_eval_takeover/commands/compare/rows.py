"""The rows of a comparison: models alone, and methods at realized rates; what each cost; and ROWS, which `frontier` reads."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.arguments import DEFAULT_POLICY, KINDS
from lm_eval_takeover.commands._options import LOADING, PAIR
from lm_eval_takeover.commands._output import WRITERS, Table, write_json
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.named import Named, find_policy, parse_word
from lm_eval_takeover.results.fields import read_rows
from lm_eval_takeover.results.files import Counts, Run, find_results, read_run
from lm_eval_takeover.runs.layout import ROWS
from lm_eval_takeover.runs.tally import COUNTS
from lm_eval_takeover.storage.paths import join_inside, make_component
from lm_eval_takeover.storage.whole_files import write_text

if TYPE_CHECKING:
    from lm_eval_takeover.calibration.tuning import Method

DRAFTED = "drafted"  # the guide's own text with drafts of the base: a point where passes or time are counted
_ALONE = {"base": {"policy": "base"}, "guide": {"policy": "guide"}, DRAFTED: {"policy": "guide", "block_size": "8"}}
LEADERS = ("guided", "ce")  # whose realized rates the rows that follow take
_BY_HAND = ("tau", "spike_ratio", "early_tokens")  # they replace a rate, as each method's budget parameter does


@dataclass(frozen=True, eq=False)
class ComparedRow:
    """One row of a comparison, as its folder keeps it. `label` names the row's folder; `word` is the method as
    `calibrate --methods` takes it.

    `rate` is the realized rate that the budget parameter is solved for. It is None for a model alone, for a parameter set by
    hand, and for a row that `follows`: this one takes the rate that the guided row realizes on each task. `covers` is a larger
    rate that the method cannot reach; this row is the nearest one. A model alone has no `host` and `donor`.
    """

    label: str
    name: str
    rate: float | None = None
    follows: bool = False
    word: str = ""
    covers: float | None = None
    host: str | None = None
    donor: str | None = None
    mixes: bool = False  # the policy writes no token alone
    results: list[str] = field(default_factory=list)  # folders in that of the comparison, in ROWS alone

    @property
    def family(self) -> str:
        """The name of a curve: of rows that differ only in their rate."""
        return self.word or self.name


@dataclass(frozen=True, eq=False)
class PlannedRow(ComparedRow):
    """A row that can be run; a model alone has no `method`."""

    arguments: dict[str, Any] = field(default_factory=dict)  # model arguments of this row alone
    method: "Method | None" = None

    def reads_spike_ratio(self, options: argparse.Namespace) -> bool:
        """Whether its gate is read off a calibration at a spike ratio that was given."""
        from lm_eval_takeover.calibration.tuning import SPIKE_RATIO
        from lm_eval_takeover.pair.loading import keep_read

        arguments = keep_read(options.model_args, self.arguments["policy"]) | self.arguments if self.method is not None else {}
        return SPIKE_RATIO in arguments


def plan_rows(options: argparse.Namespace) -> list[PlannedRow]:
    """`--rows` at their rates, in their order. Raises ArgumentError for a row that cannot be run."""
    named = [_parse_row(word) for word in options.rows.split(",") if word]
    if not named:
        raise ArgumentError("--rows is empty; expected some of base,guide,thinking=MODEL, scores and policies")
    has_leader = any(word.name in LEADERS for word in named)
    rows = [row for word in named for row in _expand(word, options, has_leader)]
    labels = [row.label for row in rows]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise ArgumentError(f"--rows names {repeated} twice")
    return rows


def _parse_row(word: str) -> Named:
    name, sign, model = word.partition("=")
    if name == "thinking" and model:
        return Named(name, {"pretrained": model}, ())
    row = parse_word("rows", word)
    if name == "thinking" or (sign and not row.arguments):
        raise ArgumentError(f"--rows '{word}': thinking=MODEL names a model, and no other row does")
    return row


def _expand(named: Named, options: argparse.Namespace, has_leader: bool) -> Iterator[PlannedRow]:
    """One row for each rate. Raises ArgumentError."""
    from lm_eval_takeover.pair.loading import keep_read, open_method, parse_arguments

    if named.name == "thinking":
        yield PlannedRow("thinking", "thinking", arguments=dict(named.arguments))
        return
    pairs = [f"{name}-{value}" for name, value in named.arguments.items()]
    label = make_component("-".join([named.name, *pairs]))
    if named.name in _ALONE:
        if named.rates or named.arguments.keys() - ({"block_size"} if named.name == DRAFTED else set()):
            raise ArgumentError(f"--rows {named.name}: the {named.name} alone has neither rates nor arguments")
        yield PlannedRow(label, named.name, word=label, arguments=_ALONE[named.name] | dict(named.arguments))
        return
    own = _name_method(named, options) | dict(named.arguments)
    shared = keep_read(options.model_args, own["policy"]) | {"direction": options.direction}
    by_hand = any(name in {**shared, **own} for name in _BY_HAND)
    method = open_method(parse_arguments({**shared, **own, "target_rate": None if by_hand else 0.5}))
    parameter = method.policy.budget_parameter
    by_hand = by_hand or parameter is None or parameter.name in own
    if by_hand and named.rates:
        at = f"{named.name}@{named.rates[0]:g}"
        raise ArgumentError(f"--rows {at}: its arguments set already how many tokens are taken over")
    rates = () if by_hand else named.rates or (options.rates if named.name != "guided" else ())
    follows = not (by_hand or rates) and named.name in ("random", "early") and has_leader
    method_name = own.get("score", "ce") if own["policy"] == DEFAULT_POLICY else own["policy"]
    given = {key: shared[key] for key in ("score_top_p",) if key in shared} | dict(named.arguments)
    word = ":".join([method_name, *(f"{key}={value}" for key, value in given.items())])
    roles = method.policy.host, method.policy.donor, method.policy.mixes
    for rate in rates or [None if by_hand or follows else options.target_rate]:
        at = f"{label}@{rate:g}" if rates else label
        yield PlannedRow(at, named.name, rate, follows, word, None, *roles, arguments=own, method=method)


def select_loading(options: argparse.Namespace) -> dict[str, str]:
    """Those of `--model_args` that load the pair."""
    return {name: value for name, value in options.model_args.items() if name in KINDS and KINDS[name].loads}


def read_pair(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments that name and load the pair."""
    own = {name: value for name in (*PAIR, *LOADING) if (value := getattr(options, name)) is not None}
    return own | select_loading(options)


def join_arguments(values: Mapping[str, str]) -> str:
    """As lm_eval reads it: `name=value,…`, or JSON where a value holds a comma."""
    if any("," in value for value in values.values()):
        return json.dumps(values)
    return ",".join(f"{name}={value}" for name, value in values.items())


def write_options(options: argparse.Namespace, *names: str) -> list[str]:
    """The given ones of these options, as words of a command."""
    words = []
    for name in names:
        if (value := getattr(options, name)) is not None and value is not False:
            shown = f"{value:.12g}" if isinstance(value, float) else str(value)
            words += [f"--{name}", *([] if value is True else [shown])]
    return words


def _name_method(named: Named, options: argparse.Namespace) -> dict[str, str]:
    """`policy` and `score`; the guided row takes those of `--model_args`."""
    if named.name != "guided":
        return find_policy("rows", named.name)
    score = options.model_args.get("score")
    policy = options.guided_policy or ("entropy" if score == "entropy" else DEFAULT_POLICY)
    return {"policy": policy, **({"score": score} if score else {})}


def write_kept_rows(run_dir: Path, rows: Mapping[ComparedRow, Sequence[Run]]) -> None:
    paths = {row: [str(run.source.parent.relative_to(run_dir)) for run in runs] for row, runs in rows.items()}
    kept = [
        {each.name: getattr(row, each.name) for each in fields(ComparedRow)} | {"results": own} for row, own in paths.items()
    ]
    write_text(run_dir / ROWS, write_json(kept))


def read_kept_rows(folder: Path) -> dict[ComparedRow, list[Run]]:
    """The rows that `compare` left in this folder, with the runs of their calls. Raises ResultsError, ArgumentError."""
    if not (folder / ROWS).exists():
        raise ArgumentError(f"'{folder}' has no {ROWS}; give the compare command that made it again")
    rows: list[ComparedRow] = read_rows(folder / ROWS, "`lm-eval-takeover compare`", ComparedRow)
    try:
        paths = {row: [join_inside(folder, path) for path in row.results] for row in rows}
    except ValueError as error:
        raise ArgumentError(f"'{folder}': {error}") from None
    return {row: [read_run(find_results(path)[-1]) for path in own] for row, own in paths.items()}


def describe_costs(runs: Mapping[ComparedRow, Sequence[Run]]) -> list[dict[str, Any]]:
    """By row, over all its calls: tokens, takeovers and passes, null for other model types, and seconds of generation."""
    costs = []
    for row, of_row in runs.items():
        counts = Counts.add([run.counts for run in of_row])
        spent = [run.seconds for run in of_row if run.seconds is not None]
        seconds = sum(spent) if len(spent) == len(of_row) else None
        costs.append({"row": row.label, **{name: getattr(counts, name) for name in COUNTS}, "seconds": seconds})
    return costs


def write_costs(costs: Sequence[Mapping[str, Any]], followers: Sequence[str], format_name: str, host: str) -> str:
    """The lines of `describe_costs` as a table. `followers` are the rows that follow the guided one."""
    numbers = (*COUNTS, "seconds")
    lines = [[row["row"], *("" if row[name] is None else f"{row[name]:,.0f}" for name in numbers)] for row in costs]
    written = (
        "Takeovers: tokens that the guide wrote. Changed: tokens that differ from the base's draw; empty if that is not known. "
        "Asked: tokens at which the method needs the guide. A pass is one forward call for one sample, without prefill. "
        "Seconds are those of generation; an attempt that was interrupted counts until its last finished sample."
    )
    notes = [name_roles(written, host)]
    if any(row["seconds"] is None for row in costs):
        notes.append("No seconds: this model type does not report those of its generation.")
    notes += [f"{', '.join(followers)}: at the rate that the guided row realized on each task."] if followers else []
    columns = ["Row", *(name.capitalize().replace("_", " ") for name in numbers)]
    return WRITERS[format_name](Table(columns, lines, notes))


def name_roles(text: str, host: str) -> str:
    """A text on a base that writes by default, in the words of a comparison where the guide does."""
    swapped = {"base": "guide", "guide": "base"}
    return re.sub(r"\b(base|guide)\b", lambda at: swapped[at[0]], text) if host == "guide" else text
