"""What a process of `lm_eval` does otherwise with this model type. A light import.

options      are checked before slow imports; lm-eval's errors about them are a line       run_command
errors       of a user, Ctrl-C and SIGTERM are one line and a status                       stopping.install_error_hook
evaluations  are known to the model, with their seed; a label names the results' folder    observe_evaluation
tasks        of any model have a digest of the code that judged, and sorted documents      observe_tasks
notices      go where lm-eval's go                                                         share_logging
tables       leave out what says nothing: reasons that no answer had, pass@1 beside acc    leave_out_noughts
git          is not asked outside a repository                                             without_stderr

`_lm_eval_takeover_autoload` puts these in place, and adds the model type and the folder of tasks.
"""

import fnmatch
import inspect
import logging
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from traceback import extract_tb
from typing import Any

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.commands import RunTask
from lm_eval_takeover.errors import ArgumentError, first_line, nearest
from lm_eval_takeover.escaping import make_notices_visible
from lm_eval_takeover.runs.identity import digest_task_code, find_missed_rate
from lm_eval_takeover.stopping import install_error_hook, is_our_command
from lm_eval_takeover.storage.code_reach import watch
from lm_eval_takeover.storage.files import TASK_CONFIGS, make_component
from lm_eval_takeover.tasks.context import NO_RUN, Evaluation, RunContext, evaluating, get_evaluation

logger = logging.getLogger(__name__)

MODEL = "guided-takeover"  # our name in the registry
DEFAULT_DEVICE = "cuda:0"  # what `lm_eval` passes on where nobody asked for a device
_RARE = ("restated", "unparsed", "timed_out", "unclosed_think")  # shares of answers that mostly are 0
_SEEDS = ("random_seed", "numpy_random_seed", "torch_random_seed")  # arguments of simple_evaluate


def _sort_selected(samples: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]]:
    """The documents of `--samples`, each once, in the order of their task: lm-eval takes them so, and logs them as given."""
    return {task: sorted(set(numbers)) for task, numbers in (samples or {}).items()}


def observe_evaluation(simple_evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """`simple_evaluate` whose models know the evaluation. Logs what was written and its cost; a label names the folder."""
    signature = inspect.signature(simple_evaluate)
    module: Any = sys.modules.get(simple_evaluate.__module__)
    if callable(evaluate := getattr(module, "evaluate", None)):  # which it calls
        module.evaluate = observe_tasks(evaluate)

    @wraps(simple_evaluate)
    def observed(*positional: Any, **named: Any) -> Any:
        options = signature.bind(*positional, **named)
        options.apply_defaults()
        named_template = options.arguments.get("apply_chat_template")
        template = named_template if isinstance(named_template, str) else None
        seed = _read_seed(signature, options.arguments)
        names = [task for task in options.arguments.get("tasks") or () if isinstance(task, str)]
        include = getattr(options.arguments.get("task_manager"), "include_path", None)
        task = RunTask(next(iter(names), None), include if isinstance(include, str) else None)
        selected = _sort_selected(options.arguments.get("samples"))
        around = get_evaluation() or Evaluation()
        with evaluating(replace(around, seed=seed, template=template, selected=selected, task=task)):
            results = simple_evaluate(*positional, **named)
        takeover = ((results or {}).get("config") or {}).get("takeover")
        if takeover is not None:
            if tracker := options.arguments.get("evaluation_tracker"):  # it writes into a folder of this name
                names, label = tracker.general_config_tracker, takeover["label"]
                names.model_name, names.model_name_sanitized = label, make_component(label)
            if takeover["tokens"]:
                logger.info("%s", describe_cost(takeover))
            if (rate := find_missed_rate(takeover, takeover["realized_rate"])) is not None:
                logger.warning("%s", describe_missed_rate(takeover, rate))
        return results

    return observed


def observe_tasks(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """lm-eval's `evaluate`, whose results have the digest of all code that a task reaches: `scorer` in its metadata."""
    watch()
    signature = inspect.signature(evaluate)

    @wraps(evaluate)
    def observed(*positional: Any, **named: Any) -> Any:
        options = signature.bind(*positional, **named).arguments
        if options.get("samples"):
            options["samples"] = _sort_selected(options["samples"])
        with evaluating(get_evaluation() or Evaluation(selected=options.get("samples") or {})):
            results = evaluate(**options)
        run = getattr(options.get("lm"), "context", None)
        verifier = run.verifier if isinstance(run, RunContext) else NO_RUN.verifier
        tasks = options.get("task_dict") or {}
        for name, config in ((results or {}).get("configs") or {}).items():
            if hasattr(task := tasks.get("tasks", tasks).get(name), "config"):
                config["metadata"] = {**(config.get("metadata") or {}), "scorer": digest_task_code(task, verifier)}
        return results

    return observed


def without_stderr(find: Callable[[], Any]) -> Callable[[], Any]:
    """lm-eval's question for git's hash, which is asked inside a repository only: elsewhere git complains on stderr."""

    @wraps(find)
    def quiet() -> Any:
        folder = Path.cwd()
        return find() if any((parent / ".git").exists() for parent in (folder, *folder.parents)) else None

    return quiet


def _read_seed(signature: inspect.Signature, options: Mapping[str, Any]) -> int | None:
    """torch's seed; None if it is lm-eval's default. One number for all seeds (`--seed 1234`) is no default."""
    seeds = [options[name] for name in _SEEDS]
    torch_seed: int | None = seeds[-1]
    is_default = torch_seed == signature.parameters[_SEEDS[-1]].default and len(set(seeds)) > 1
    return None if is_default else torch_seed


def choose_seed(own: int | None) -> int:
    """The seed of a model: `own`, its argument, goes before the evaluation's; 0 without either. Says which of two counts."""
    evaluation = get_evaluation()
    theirs = None if evaluation is None else evaluation.seed
    if own is None:
        return theirs or 0
    if theirs is not None and theirs != own:
        logger.warning("seed=%d of the model arguments counts, not lm-eval's seed %d", own, theirs)
    return own


def describe_cost(takeover: Mapping[str, Any]) -> str:
    """One line on a run, from its `config.takeover`: realized rate, tokens and forward passes."""
    tokens = f"{takeover['takeovers']:,} of {takeover['tokens']:,} tokens"
    if not takeover["takeovers"] and takeover.get("policy") not in ("base", "guide"):
        tokens = f"the guide wrote nothing: 0 of {takeover['tokens']:,} tokens"
    passes = f"{takeover['base_passes']:,} passes of the base, {takeover['guide_passes']:,} of the guide"
    return f"{takeover['label']}: realized rate {takeover['realized_rate']:.2%} ({tokens}), {passes}"


def describe_missed_rate(takeover: Mapping[str, Any], rate: float) -> str:
    """One line on a run whose realized rate is off: both rates, its scores, and in what it differs from its calibration."""
    differences = "; ".join(takeover["differs_from_calibration"])
    line = f"{takeover['label']}: {rate:.1%} of the tokens were asked for, and {takeover['realized_rate']:.1%} were taken over"
    cut = takeover["of_truncated"] or {}
    for texts, counts in (("", takeover), (" of the texts that were cut off", cut if takeover["truncated"] < 1 else {})):
        if counts.get("mean_score") is not None:
            line += f"; mean score{texts} {counts['mean_score']:.3g} nats, {counts['spike_share']:.1%} above tau"
    if takeover["calibration"] is None:
        return line
    return f"{line}; against its calibration '{takeover['calibration']}': {differences or 'no known difference'}"


def leave_out_noughts(results: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's results for its table on the terminal; files keep all metrics."""

    def says_something(key: str, values: Mapping[str, Any]) -> bool:
        metric, _, chosen = key.partition(",")
        name = metric.removesuffix("_stderr")
        value = values.get(f"{name},{chosen}")
        usual = values.get(f"acc,{chosen}") if name == "pass@1" else 0 if name in _RARE else None
        return not (isinstance(value, float | int) and usual is not None and math.isclose(value, usual, abs_tol=1e-9))

    shown = {column: dict(results[column]) for column in ("results", "groups") if column in results}
    for of in shown.values():
        of |= {task: {key: values[key] for key in values if says_something(key, values)} for task, values in of.items()}
    return {**results, **shown}


def refuse_cache(path: str) -> None:
    """Raises ArgumentError for lm-eval's `--use_cache`."""
    raise ArgumentError(
        f"--use_cache '{path}': lm-eval's cache knows prompts and no models, so one model would get another's answers; leave it "
        f"out, and give run_dir=… to keep finished samples"
    )


def share_logging() -> None:
    """Let our notices go where lm-eval's go, under its verbosity."""
    logging.getLogger("lm_eval_takeover").parent = logging.getLogger("lm_eval")
    make_notices_visible()


# The command


def run_command(run: Callable[[Namespace], None], options: Namespace) -> None:
    """`lm_eval run` with this model type. Raises ArgumentError for what lm-eval itself refuses among its options."""
    check_options(options)
    try:
        run(options)
    except Exception as error:
        if (line := _describe_option_error(error)) is None:
            raise
        raise ArgumentError(line) from error


def check_options(options: Namespace) -> None:
    """Check what can be known of `lm_eval run`'s options, first what needs no slow import. Raises a TakeoverError of one line."""
    install_error_hook()
    share_logging()
    written = _read_config(getattr(options, "config", None))

    def read(name: str) -> Any:
        value = getattr(options, name, None)
        return written.get(name) if value is None else value

    if written and read("model") != MODEL:
        return
    limit = read("limit")
    if isinstance(limit, (int, float)) and not 0 < limit < math.inf:
        raise ArgumentError(f"--limit {limit:g} is not above 0: give a number of documents, or a share below 1")
    samples = read("samples")
    if isinstance(samples, str) and "{" not in samples and not Path(samples).is_file():
        raise ArgumentError(f"--samples '{samples}' is no file; expected JSON, {{TASK: [doc_id, …]}}, or a file of it")
    if read("use_cache"):
        refuse_cache(read("use_cache"))
    _check_output(read("output_path"))
    tasks = read("tasks") or []
    tasks = tasks.split(",") if isinstance(tasks, str) else [task for task in tasks if isinstance(task, str)]
    _check_tasks(tasks, read("include_path"), read("num_fewshot"))
    drawn, arguments = read("gen_kwargs") or {}, read("model_args") or {}
    if not (isinstance(drawn, dict) and isinstance(arguments, dict)):  # `a=1,b=2`, which lm-eval takes apart itself
        return
    own = {name: read(name) for name in ("batch_size", "max_batch_size", "device")}
    values = {name: value for name, value in own.items() if value is not None} | arguments
    if not {"policy", "plugins"} & values.keys():  # other policies' arguments are known only with torch
        ModelArguments.parse(values)
    if values.get("enable_thinking") is not None and not read("apply_chat_template"):
        raise ArgumentError(
            f"enable_thinking={values['enable_thinking']} is read with --apply_chat_template; give both or none"
        )
    from lm_eval_takeover.pair.ids import check_source
    from lm_eval_takeover.tasks.instances import read_generation_settings

    # `do_sample` alone says nothing: the task has a temperature
    read_generation_settings({k: v for k, v in drawn.items() if k != "do_sample" or "temperature" in drawn}, 1)
    for name in ("base", "guide"):
        if isinstance(values.get(name), str) and values[name]:
            check_source(name, values[name])
    from lm_eval_takeover.pair.policy_choice import check_arguments

    check_arguments(values, RunTask(next(iter(tasks), None), read("include_path")))


def _check_output(path: Any) -> None:
    """lm-eval makes a folder of this name, or writes beside `NAME.json`, once all the work is done."""
    if not path:
        return
    folder = Path(path).parent if Path(path).suffix == ".json" else Path(path)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        problem = "is no folder" if not existing.is_dir() else "cannot be written"
        raise ArgumentError(
            f"--output_path '{path}': '{existing}' {problem}, so no results could be saved; give another folder"
        )


def _check_tasks(names: Sequence[str], include_path: Any, shots: Any) -> None:
    """Raises ArgumentError for a mistyped folder or task of this package, and for examples, which none of them has."""
    if isinstance(include_path, str) and include_path and not Path(include_path).is_dir():
        raise ArgumentError(f"--include_path '{include_path}' is not a folder of task files")
    ours = [file.stem for file in TASK_CONFIGS.glob("takeover_*.yaml")]
    for name in names:
        if not include_path and name.startswith("takeover") and name not in ours and not fnmatch.filter(ours, name):
            raise ArgumentError(f"--tasks {name} is not known; {nearest(name, ours)}")
        if shots and (found := fnmatch.filter(ours, name)):
            raise ArgumentError(f"--num_fewshot {shots}: {found[0]} has no examples, so nothing reads it; leave it out")


def _describe_option_error(error: Exception) -> str | None:
    """The line on an error of lm-eval's about its own options, such as an unknown task; None for other errors."""
    raised_in = [Path(frame.filename).name for frame in extract_tb(error.__traceback__)[-1:]]
    line = first_line(error).strip('"')
    unknown = "Tasks not found" in line or "not a registered task" in line  # in lm-eval 0.4, 0.5
    other = line.startswith(("Elements of --samples", "Seed must be between"))  # the latter is NumPy's
    if raised_in == ["evaluate_config.py"] or (unknown and raised_in == ["manager.py"]) or other:
        return line + "; `lm_eval ls tasks` lists them, and --include_path adds yours" * unknown
    return None


def _read_config(path: str | None) -> dict[str, Any]:
    """The content of a `--config` file; empty if it cannot be read, which lm-eval itself reports."""
    if path is None:
        return {}
    import yaml  # type: ignore[import-untyped]

    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def is_default_device(device: Any) -> bool:
    """Whether this is the `lm_eval` command's own default, which is no demand for a GPU."""
    on_command_line = any(word.partition("=")[0] == "--device" for word in sys.argv)
    return device == DEFAULT_DEVICE and is_our_command() and not on_command_line
