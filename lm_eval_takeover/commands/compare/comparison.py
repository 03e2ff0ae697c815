"""What `compare` was asked for: its options checked and typed, once, before torch is loaded."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import KINDS, ModelArguments, check_folder, split_plugins
from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.commands._options import LOADING, PAIR, check_include_path, check_prompts, read_arguments, read_given
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.named import THINKING, Named, check_name, parse_rates, parse_word
from lm_eval_takeover.results.kept_rows import DRAFTED

ALONE: Mapping[str, dict[str, Any]] = {name: {"policy": name} for name in ("base", "guide")} | {
    DRAFTED: {"policy": "guide", "block_size": 8},
    THINKING: {"policy": "guide"},
}
GUIDED = "guided"  # `ce` at the target rate
_OWN = ("base", "guide", "run_dir", "model", "calibration", "target_rate", "seed", "direction")  # options have them
_OF_ROWS = ("policy", "score", "tau", "spike_ratio", "rate", "early_tokens")
_ARGUMENTS = (*PAIR, *LOADING, "enable_thinking", "batch_size", "direction", "plugins")  # of a model, as options
_HARNESS = ("apply_chat_template", "limit", "seed", "include_path")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The rows, and what all of them share in the form of those who take it.

    `arguments` are model arguments, of which each row has what its policy reads. `harness` are options of `lm_eval`, `prompts`
    those of `calibrate`. Of these three only what is given is there.
    """

    tasks: list[str]
    run_dir: Path
    rows: list[Named]
    rates: tuple[float, ...]
    target_rate: float
    arguments: Mapping[str, Any]
    harness: Mapping[str, Any]
    prompts: Mapping[str, Any]
    calibration: str | None
    group: str | None
    format: str
    quiet: bool

    @property
    def pair(self) -> ModelArguments:
        """The arguments that name and load the pair."""
        loading = {name: value for name, value in self.arguments.items() if name in KINDS and KINDS[name].loads}
        return ModelArguments.parse(loading)


def read_comparison(options: argparse.Namespace) -> Comparison:
    """Raises ArgumentError for what is wrong whatever the models are: first for mistyped words, which need no slow import."""
    arguments = dict[str, Any](pair for word in options.model_args for pair in read_arguments(word).items())
    drawn = dict[str, Any](pair for word in options.gen_kwargs for pair in read_arguments(word, "gen_kwargs").items())
    for name in arguments:
        if name in _OWN:
            raise ArgumentError(f"--model_args {name}=… is set by compare itself; see --help for the option")
        if name in _OF_ROWS:
            raise ArgumentError(f"--model_args {name}=… belongs to a row, as in --rows js,ce:tau=1.5,segment:score=js@0.05")
    arguments = read_given(options, *_ARGUMENTS) | arguments
    rows = [_parse_row(word, "plugins" in arguments) for word in options.rows.split(",") if word]
    if not rows:
        raise ArgumentError("--rows is empty; expected some of base,guide,thinking=MODEL, scores and policies")
    rates = parse_rates("rates", options.rates, options.rates.split(",")) if options.rates else ()
    checked = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
    ModelArguments.parse({**checked, "target_rate": options.target_rate})
    check_prompts(options.prompts, options.field, has_task=True)
    check_include_path(options)
    split_plugins(arguments.get("plugins"))
    if options.calibration is not None:
        find_calibration(options.calibration)
    if (options.base is None) != (options.guide is None):
        raise ArgumentError("--base and --guide go together; without both the bundled demo pair is compared")
    models = [("base", options.base), ("guide", options.guide)] if options.base is not None else []
    for role, model in [*models, *((THINKING, row.arguments["guide"]) for row in rows if row.name == THINKING)]:
        check_folder(role, model)
    told = {"gen_kwargs": drawn, "metadata": read_arguments(options.metadata, "metadata")}
    return Comparison(
        tasks=[task for word in options.tasks for task in word.split(",") if task],
        rows=rows,
        rates=rates,
        arguments=arguments,
        harness=read_given(options, *_HARNESS) | {name: values for name, values in told.items() if values},
        prompts=read_given(options, "prompts", "field", "num_prompts", "num_held_out"),
        **{name: getattr(options, name) for name in ("run_dir", "target_rate", "calibration", "group", "format", "quiet")},
    )


def _parse_row(word: str, has_plugins: bool) -> Named:
    name, sign, model = word.partition("=")
    if name == THINKING and model:
        return Named(name, {"guide": model}, ())
    row = parse_word("rows", word)
    if name == THINKING or (sign and not row.arguments):
        raise ArgumentError(f"--rows '{word}': thinking=MODEL names a model, and no other row does")
    if not has_plugins:
        check_name("rows", row.name, (*ALONE, GUIDED))
    return row
