"""What `compare` was asked for: its options checked and typed, once, before torch is loaded."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import KINDS, ModelArguments, check_folder, split_plugins
from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.commands._options import LOADING, PAIR, check_include_path, check_prompts, list_fields
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.named import THINKING, Named, check_name, parse_rates, parse_word
from lm_eval_takeover.results.kept_rows import DRAFTED

ALONE = {"base": {"policy": "base"}, "guide": {"policy": "guide"}, DRAFTED: {"policy": "guide", "block_size": "8"}}
GUIDED = "guided"  # `ce` at the target rate
_OWN = ("base", "guide", "run_dir", "model", "calibration", "target_rate", "seed", "direction")  # options have them
_OF_ROWS = ("policy", "score", "tau", "spike_ratio", "rate", "early_tokens")
_LISTED = (*LOADING, "enable_thinking", "batch_size", "direction", "target_rate")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The options of `compare` by their names."""

    tasks: list[str]
    run_dir: Path
    rows: list[Named]
    rates: tuple[float, ...]
    target_rate: float
    direction: str
    model_args: Mapping[str, str]
    gen_kwargs: Mapping[str, str]
    base: str | None
    guide: str | None
    calibration: str | None
    prompts: str | None
    field: str | None
    num_prompts: int
    num_held_out: int
    apply_chat_template: bool
    enable_thinking: str | None
    batch_size: str
    device: str | None
    guide_device: str | None
    dtype: str
    guide_dtype: str | None
    trust_remote_code: bool
    seed: int | None
    include_path: Path | None
    limit: float | None
    metadata: str | None
    group: str | None
    format: str
    quiet: bool

    @property
    def loading(self) -> dict[str, str]:
        """Those of `model_args` that load the pair."""
        return {name: value for name, value in self.model_args.items() if name in KINDS and KINDS[name].loads}

    @property
    def pair(self) -> dict[str, Any]:
        """The arguments that name and load the pair."""
        return {name: value for name in (*PAIR, *LOADING) if (value := getattr(self, name)) is not None} | self.loading

    def write(self, *names: str) -> list[str]:
        """The given ones of these options, as words of a command."""
        words = []
        for name in names:
            if (value := getattr(self, name)) is not None and value is not False:
                shown = f"{value:.12g}" if isinstance(value, float) else str(value)
                words += [f"--{name}", *([] if value is True else [shown])]
        return words


def read_comparison(options: argparse.Namespace) -> Comparison:
    """Raises ArgumentError for what is wrong whatever the models are: first for mistyped words, which need no slow import."""
    arguments, gen_kwargs = (parse_pairs(name, getattr(options, name)) for name in ("model_args", "gen_kwargs"))
    if options.plugins:
        arguments["plugins"] = options.plugins
    for name in arguments:
        if name in _OWN:
            raise ArgumentError(f"--model_args {name}=… is set by compare itself; see --help for the option")
        if name in _OF_ROWS:
            raise ArgumentError(f"--model_args {name}=… belongs to a row, as in --rows js,ce:tau=1.5,segment:score=js@0.05")
    rows = [_parse_row(word, bool(arguments.get("plugins"))) for word in options.rows.split(",") if word]
    if not rows:
        raise ArgumentError("--rows is empty; expected some of base,guide,thinking=MODEL, scores and policies")
    rates = parse_rates("rates", options.rates, options.rates.split(",")) if options.rates else ()
    given = vars(options) | {
        "tasks": [task for word in options.tasks for task in word.split(",") if task],
        "rows": rows,
        "rates": rates,
        "gen_kwargs": gen_kwargs,
        "model_args": arguments,
    }
    ModelArguments.parse({name: given[name] for name in _LISTED if given[name] is not None})
    check_prompts(options.prompts, list_fields(options.field, has_task=True))
    check_include_path(options)
    split_plugins(arguments.get("plugins"))
    if options.calibration is not None:
        find_calibration(options.calibration)
    if (options.base is None) != (options.guide is None):
        raise ArgumentError("--base and --guide go together; without both the bundled demo pair is compared")
    models = [("base", options.base), ("guide", options.guide)] if options.base is not None else []
    for role, model in [*models, *((THINKING, row.arguments["guide"]) for row in rows if row.name == THINKING)]:
        check_folder(role, model)
    if options.limit is not None and not 0 < options.limit < math.inf:
        raise ArgumentError(f"--limit {options.limit:g} is not a number above 0; give a number of problems, or a share below 1")
    return Comparison(**{each.name: given[each.name] for each in fields(Comparison)})


def _parse_row(word: str, has_plugins: bool) -> Named:
    name, sign, model = word.partition("=")
    if name == THINKING and model:
        return Named(name, {"guide": model}, ())
    row = parse_word("rows", word)
    if name == THINKING or (sign and not row.arguments):
        raise ArgumentError(f"--rows '{word}': thinking=MODEL names a model, and no other row does")
    if row.name not in (*ALONE, GUIDED) and not has_plugins:
        check_name("rows", row.name, (*ALONE, GUIDED, THINKING))
    return row


def parse_pairs(option: str, words: list[str]) -> dict[str, str]:
    """`NAME=VALUE` words, several joined by commas where no value holds one."""
    values = {}
    for word in words:
        parts = word.split(",") if all("=" in part for part in word.split(",")) else [word]
        for part in parts:
            name, sign, value = part.partition("=")
            if not sign or not name:
                raise ArgumentError(f"--{option} '{part}' is not NAME=VALUE")
            values[name] = value
    return values
