"""`calibrate` from its options to the two files that it writes: pair, prompts, rollouts, calibration, page."""

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from lm_eval_takeover import stopping
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import read_calibration, write_calibration
from lm_eval_takeover.calibration.thresholds import Calibration
from lm_eval_takeover.commands._options import read_loading
from lm_eval_takeover.commands._output import write_file, write_terminal, writing
from lm_eval_takeover.commands.calibrate.page import (
    describe_pair,
    describe_rollouts,
    list_limits,
    rate_table,
    render_page,
    target_table,
)
from lm_eval_takeover.commands.calibrate.prompts import TaskForm, load_task_form, read_prompts
from lm_eval_takeover.commands.calibrate.rollouts import Wanted, Work, calibrate, describe_unsolved
from lm_eval_takeover.commands.calibrate.setup import Setup
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.named import find_policy, parse_word
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, TASK_SAMPLING
from lm_eval_takeover.pair.loading import keep_read, load_pair, open_method, parse_arguments

VLLM_GROUP = 512  # rollouts between which a calibration can be interrupted; vLLM batches what fits


def measure(options: argparse.Namespace) -> int:
    """Writes a calibration; returns the exit status. Raises ArgumentError, for an unreached rate after the file is written."""
    methods = _read_methods(options)
    chat = bool(options.apply_chat_template)
    form = load_task_form(options.task, options.include_path, TASK_MAX_GEN_TOKS, chat=chat) if options.task else None
    setup = _prepare(options, form)
    stopping.on_stop(lambda: _describe_kept(options.out))
    work = Work()
    scores = _choose_scores({*options.score, *(scorer.name for each in methods if (scorer := each.method.policy.scorer))})
    known = _read_known(options, setup, scores)
    with setup.open_parts(options.out, scores) as parts:
        calibration = calibrate(setup, wanted=methods, known=known, parts=parts, work=work)
        unsolved = [target for target in calibration.targets if not (target.is_reached or options.nearest)]
        reached = tuple(target for target in calibration.targets if target not in unsolved)
        calibration = replace(calibration, name=options.out.stem, targets=reached)
        with writing("out", options.out, left := "what was measured is kept"):
            write_calibration(calibration, options.out)
        write_file("out", options.out.with_suffix(".md"), render_page(calibration, str(options.out)), left)
        if not unsolved:
            parts.clear()
    _print_report(calibration, options, work)
    if unsolved:
        raise ArgumentError(
            f"--target_rate: {'; '.join(map(describe_unsolved, unsolved))} (the file is written without it; --nearest takes the "
            f"nearest one, and the rollouts are kept for another try with --overwrite)"
        )
    return 0


def _prepare(options: argparse.Namespace, form: TaskForm | None) -> Setup:
    """The pair, its prompts and how rollouts are drawn: as the options say, else as the task does, else as our tasks."""
    given = {"batch_size": options.batch_size, "direction": options.direction}
    arguments = ModelArguments.parse({**given, **read_loading(options)})
    usual = form.sampling if form else TASK_SAMPLING
    changes = {name: value for name in ("temperature", "top_p", "top_k") if (value := getattr(options, name)) is not None}
    sampling = replace(usual, **changes)
    pair, backend = load_pair(arguments), None
    if arguments.backend == "vllm":
        from lm_eval_takeover.vllm.backend import VllmBackend

        backend = VllmBackend(arguments, pair, Disagreement(direction=arguments.direction, gate=Gate(0.0)))

    def chat(text: str) -> str:
        return pair.chat_prompt([{"role": "user", "content": text}], enable_thinking=options.enable_thinking)

    forms = ("split", "field", "seed", "enable_thinking", "diagnostic")
    prompts = read_prompts(
        options.prompts,
        task=form,
        count=options.num_prompts,
        held_out=options.num_held_out if options.target_rate or options.methods else 0,
        chat=chat if options.apply_chat_template else None,
        **{name: getattr(options, name) for name in forms},
    )
    return Setup(
        pair=pair,
        prompts=prompts,
        direction=options.direction,
        sampling=sampling,
        max_gen_toks=options.max_gen_toks or (form.max_gen_toks if form else TASK_MAX_GEN_TOKS),
        until=form.until if form else (),
        seed=options.seed,
        batch_size=VLLM_GROUP if backend else arguments.rows,
        window=options.window,
        backend=backend,
    )


def _read_methods(options: argparse.Namespace) -> list[Wanted]:
    """Those of `--methods`, else of every `--score`, with their rates. Raises ArgumentError for what cannot be calibrated."""
    methods = []
    usual = {name: getattr(options, name) for name in ("direction", "kappa_rule", "window")} | {"target_rate": 0.5}
    for word in options.methods or options.score if options.target_rate or options.methods else []:
        named = parse_word("methods", word)
        own = find_policy("methods", named.name) | dict(named.arguments)
        values = keep_read(usual, own["policy"]) | {"plugins": options.plugins} | own
        method = open_method(parse_arguments(values))
        _ = method.budget_parameter  # raises where it has none
        methods.append(Wanted(method, named.rates or options.target_rate))
    return methods


def _choose_scores(asked: set[str]) -> list[Score]:
    """Ours and those of `--plugins`; of an installed package only those that are asked for."""
    others = registered.installed()
    return [s for s in registered if s.source.digest is None or s.name in asked or s.name not in others]


def _read_known(options: argparse.Namespace, setup: Setup, scores: Sequence[Score]) -> Calibration | None:
    """With `--extend`, what is in the file already; None where it was measured with other settings."""
    if not options.extend or not options.out.exists():
        return None
    known = read_calibration(options.out)
    same = all(_plain(value) == _plain(getattr(known, name)) for name, value in setup.describe().items())
    digests = {name: score.plugin and score.plugin["digest"] for name, score in known.scores.items()}
    if same and {score.name: score.source.digest for score in scores}.items() <= digests.items():
        return known
    print(f"'{options.out}' was measured with other settings, and is measured again", file=sys.stderr)
    return None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=asdict))


def _describe_kept(out: Path) -> str:
    """The last line of a stopped call: what is kept."""
    if any(out.parent.glob(f".{out.name}.*.partial/*.npz")):
        return "what was finished is kept, and the same command goes on from there"
    return "nothing was written"


def _print_report(calibration: Calibration, options: argparse.Namespace, work: Work) -> None:
    print(write_terminal(rate_table(calibration, list(dict.fromkeys(options.score)))))
    if calibration.targets:
        print(write_terminal(target_table(calibration)))
    for target in (target for target in calibration.targets if not target.is_reached):
        print(describe_unsolved(target))
    print(f"{describe_rollouts(calibration)} -> {options.out}, {options.out.with_suffix('.md')}")
    print("\n".join([_describe_cost(work), describe_pair(calibration), *list_limits(calibration)]))


def _describe_cost(work: Work) -> str:
    """Speed and peak memory of this call."""
    # Linux counts in KiB, macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    parts = [f"peak memory {peak / 2**20:,.0f} MiB"]
    if torch.cuda.is_available():
        parts.append(f"of the GPU {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB")
    if work.tokens:
        parts.insert(0, f"{work.tokens / work.seconds:,.0f} tokens/s, rolled out and scored")
    if work.reused:
        parts.append(f"{work.reused} rollouts of an earlier call used again")
    return "; ".join(parts)
