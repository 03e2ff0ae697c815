"""What a run says of itself: its identity, its facts and its counts, for results files, journals and traces.

The identity is made of the one list of what can change a text or a verdict:

    what                        counts by                                                       in
    weights, configuration      every byte that loading opens; of the hub the commit            text_settings (`describe_member`)
    adapters, code of others    the same, behind the revision of their model                    text_settings
    tokenizers                  all that turns tokens into text                                 text_settings
    policy, score, gate         their settings; plug-ins with all that they reach               text_settings (`_policy_settings`)
    calibration                 tau and kappa, or what else was read off it                     text_settings
    prompt, sampling, repeat    token ids, settings, number                                     the key of a sample
    documents                   their content, with their answers                               identity of a task
    code that judges            all that a task reaches, and the versions of what it uses       scorer (`digest_task_code`)
    judging in a task file      JUDGING                                                         configs of the results
    arguments of other models   all but HARMLESS                                                model_args of the results

`config.takeover` of a results file has `text_settings`, their digest `identity`, and `per_task[TASK].identity`: the digest of all
samples that were asked for. Two files with one identity have the same texts. The kinds in `arguments` say what each argument
changes. Not in it are versions of Python and of libraries that round in another way, which a run's facts have.
"""

import functools
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from lm_eval_takeover import __version__
from lm_eval_takeover.arguments import KINDS, TWINS, ModelArguments
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.layout import ROW
from lm_eval_takeover.storage import code_reach
from lm_eval_takeover.storage.code_reach import PACKAGE
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.storage.schema import check

if TYPE_CHECKING:  # these load torch or `answers`, which readers do not need
    from lm_eval_takeover.answers.samples import Verifier
    from lm_eval_takeover.method.policy import Policy
    from lm_eval_takeover.method.request import Request
    from lm_eval_takeover.pair.member import Member
    from lm_eval_takeover.pair.pair import Pair
    from lm_eval_takeover.pair.policy_choice import GateOrigin

LIBRARIES = ("torch", "transformers", "lm_eval")
COUNTS = ("tokens", "takeovers", "changed", "asked", "base_passes", "guide_passes")
SCHEMA = 2  # 1 drew by inverse CDF
# Arguments of vLLM's engine that can change a text.
_OF_ENGINE = ("quantization", "kv_cache_dtype", "load_format", "rope_scaling", "tensor_parallel_size")
# Fields of a task file that say how it judges, in results whose task has no digest of its code.
JUDGING = ("process_results", "filter_list", "metric_list", "doc_to_target", "doc_to_choice")
# Arguments of lm-eval's other models, and of vLLM's engine, that change no text.
_HARMLESS_ELSEWHERE = {
    "num_concurrent", "max_retries", "timeout", "base_url", "verify_certificate", "eos_string", "data_parallel_size",
    "data_parallel_backend", "data_parallel_wait", "data_parallel_timeout", "gpu_memory_utilization", "swap_space",
}  # fmt: skip
# Model arguments that change no text; `model` is a label of ours, and the name of a model elsewhere.
HARMLESS = _HARMLESS_ELSEWHERE | {name for name, kind in KINDS.items() if kind.key is None} - {"model"}


def describe_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run in `config.takeover`: its `text_settings` and their digest."""
    return {"identity": digest_of(settings), "text_settings": settings}


def identify_task(asked: Iterable[AskedSample]) -> str:
    """The identity of a task: the digest of all samples that were asked for, in any order, each once."""
    return digest_of(sorted({(row.doc, row.idx, row.sample, row.key.hex()) for row in asked}))


def find_row(results: Path, tasks: Mapping[str, str | None]) -> str | None:
    """The row of `compare` that these tasks are of, by the identities that ROW/row.json has; None where they are of none."""
    for folder in results.absolute().parents[:4]:
        if row := read_row(folder):
            return digest_of(row) if tasks and tasks.items() <= row.items() else None
    return None


def read_row(folder: Path) -> dict[str, str]:
    """The identity of each task of a row of `compare`; empty where the folder holds none."""
    try:
        row = json.loads((folder / ROW).read_text())
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) and all(isinstance(value, str) for value in row.values()) else {}


def collect_text_settings(pair: "Pair", policy: "Policy", given: ModelArguments) -> dict[str, Any]:
    """All that texts depend on beside requests, as JSON values. Local folders count by their files."""
    engine = {name: value for name, value in given.engine_arguments.items() if name in _OF_ENGINE}
    return {
        "schema": SCHEMA,
        "backend": f"{given.backend} {json.dumps(engine, sort_keys=True, default=str)}" if engine else given.backend,
        "models": {member.role: describe_member(member, member.role in policy.roles) for member in pair.members},
        "vocabulary": [pair.vocab_size, pair.vocabulary.digest, _tokenizer_digest(pair.tokenizer)],
        "ends": sorted(pair.eos_ids),
        "policy": _policy_settings(policy),
        "seed": given.seed or 0,
        "trust_remote_code": given.trust_remote_code,
    }


def describe_member(member: "Member", is_asked: bool) -> dict[str, Any]:
    """A model by its files, or by its id and commits; its dtype if it is asked, and what else changes it as it is loaded."""
    others = {"base", "guide", "dtype", "peft", *TWINS.values()}  # an adapter is in the revision
    names = (name for name, kind in KINDS.items() if kind.key == "models" and name not in others)
    settings = {name: value for name in names if (value := getattr(member.given, name))}
    model = member.id.revision if Path(member.path).is_dir() else f"{member.id.id}@{member.id.revision}"
    dtype = member.weights.dtype if is_asked else None
    return {"model": model, "dtype": dtype, **({"loading": settings} if settings else {})}


def _tokenizer_digest(tokenizer: Any) -> str:
    """Digest of all that turns tokens into text, in which stop strings are found; of the vocabulary alone for slow tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    rewrites = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
    return digest_of_text(f"{rewrites}{text}").hex()


def _policy_settings(policy: "Policy") -> dict[str, Any]:
    settings: dict[str, Any] = {"name": policy.name, "host": policy.host, "donor": policy.donor, **policy.settings()}
    if policy.scorer is not None:
        settings |= {"score": policy.scorer.name, "score_top_p": getattr(policy, "score_top_p", 1.0)}
    if policy.gate is not None:
        settings |= asdict(policy.gate)
    if policy.redraws:
        settings["redraws"] = True  # until 0.1.0 with the host's words, but for the residual of `lossy`
    settings["plugins"] = [source.digest for source in policy.sources]
    return settings


# Tasks


def digest_task(task: Any) -> str:
    """A task of lm-eval without its documents: its configuration, and the code that it reaches."""
    config = task.config.to_dict(keep_callable=True)
    config["metadata"] = {name: value for name, value in (config.get("metadata") or {}).items() if name != "config_source"}
    task.doc_to_text(task.eval_docs[0])  # what its code asks for is known once it has run
    return digest_of([_name_functions(config, []), digest_task_code(task)])


def digest_task_code(task: Any, verifier: "Verifier" = "takeover") -> str:
    """All code that prompts and judges by a task: its class, the functions that its file names, and what these reach."""
    from lm_eval_takeover.tasks.verdicts import identify_scorer  # with `answers`, which readers do not need

    named: list[Any] = [type(task)]
    _name_functions(task.config.to_dict(keep_callable=True), named)
    files: dict[str, Any] = dict.fromkeys(_list_named_files(task))
    files |= {file: each for each in named if (file := _find_source(each))}
    libraries = {each.__module__.partition(".")[0] for file, each in files.items() if code_reach.is_installed(file)}
    found = code_reach.describe_code(
        file for file in files if not code_reach.is_installed(file) and not code_reach.is_ours(file)
    )
    found += [(name, code_reach.find_version(name) or "") for name in sorted(libraries)]
    if any(map(code_reach.is_ours, files)) or (PACKAGE, "") in found:
        found.append((PACKAGE, identify_scorer(verifier)))
    return digest_of(found)


def _list_named_files(task: Any) -> list[str]:
    """The files that a task file names by `!function`, whatever made the functions there."""
    from lm_eval.tasks._yaml_loader import load_yaml

    source = Path((task.config.metadata or {}).get("config_source") or "inline")
    text = json.dumps(load_yaml(source, resolve_func=False), default=str) if source.is_file() else ""
    named = (f"{folder}/{name.replace('.', '/')}.py" for folder, name in re.findall(r'"(/[^"]*)/([\w.]+)\.\w+"', text))
    return [file for file in named if Path(file).is_file()]


def _find_source(value: Any) -> str | None:
    """The file of a function, a class or an object's class; None of what is built in."""
    value = inspect.unwrap(value) if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    try:
        return inspect.getsourcefile(value)
    except TypeError:
        return None


def _name_functions(value: Any, found: list[Any]) -> Any:
    """JSON values in which functions are their names; `found` collects what can be called, as its code is digested apart."""
    if callable(value) and getattr(value, "__module__", None) != "builtins":
        found.append(value)
    if isinstance(value, functools.partial):
        return [_name_functions(each, found) for each in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return {str(name): _name_functions(each, found) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_name_functions(each, found) for each in value]
    if callable(value) and not hasattr(value, "__qualname__"):  # an object of a class of its own
        value = type(value)
    return getattr(value, "__qualname__", value)


def sample_key(settings: str, request: "Request") -> bytes:
    """16 bytes that stand for all that the text of one sample depends on; `settings` is the digest of `collect_text_settings`."""
    from lm_eval_takeover.method.sampling import request_digest

    prompt = request_digest(request.prompt).hex(), len(request.prompt), request.sample, request.sampling.settings()
    begun = (request.begun, request.begun_scores) if request.begun else ()
    return bytes.fromhex(digest_of([settings, *prompt, request.until, request.max_new_tokens, *begun]))


# Facts


def describe_run(arguments: ModelArguments, pair: "Pair", policy: "Policy", origin: "GateOrigin") -> dict[str, Any]:
    """`config.takeover` of lm-eval's results file, without the counts of what was written."""
    gate, scorer = policy.gate, policy.scorer
    return {
        "label": arguments.model
        or make_label([member.id.id for member in pair.members], policy.name, getattr(scorer, "name", None)),
        "base": asdict(pair.base.id) if pair.base else None,
        "guide": asdict(pair.guide.id) if pair.guide else None,
        "backend": arguments.backend,
        "policy": policy.name,
        "direction": policy.direction,
        "score": scorer.name if scorer else None,
        **{name: getattr(gate, name, None) for name in ("tau", "kappa", "window")},
        "spike_ratio": origin.spike_ratio,
        "target_rate": origin.target.target_rate if origin.target else None,
        "calibration": origin.calibration,
        "kappa_rule": origin.kappa_rule,
        **{"rate": None, "early_tokens": None, **policy.settings()},
        "method": policy.settings(),
        "plugins": {source.name: source.digest for source in policy.sources},
        "seed": arguments.seed,
        "block_size": arguments.block_size,
        "devices": {role: str(pair.member(role).device) for role in policy.roles},
        "dtypes": {role: pair.member(role).weights.dtype for role in policy.roles},
        "parameters": {role: pair.member(role).weights.parameters for role in policy.roles},
    }


def make_label(ids: Sequence[str], policy: str, score: str | None) -> str:
    """`BASE+GUIDE-policy`, by the last part of the models' ids; with the score, where it is not the policy's usual one."""
    other = f"-{score}" if score not in (None, "ce", policy) else ""
    return f"{'+'.join(name.rpartition('/')[2] for name in ids)}-{policy}{other}"


def find_missed_rate(takeover: Mapping[str, Any], realized: float | None) -> float | None:
    """The rate that a run was asked for, if the realized one is off by more than a point and more than a fifth of it."""
    rate = next((takeover[name] for name in ("target_rate", "rate") if takeover.get(name) is not None), None)
    missed = rate is not None and realized is not None and abs(realized - rate) > max(0.01, rate / 5)
    return rate if missed else None


def collect_facts(given: ModelArguments, settings: Mapping[str, Any], takeover: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an attempt, its tasks apart; `settings` are those of `identity`, `takeover` of `describe_run`."""
    return {
        "version": __version__,
        "library_versions": {name: metadata.version(name) for name in LIBRARIES},
        "arguments": asdict(given),
        "settings": settings,
        "takeover": takeover,
    }


def check_facts(facts: Any) -> dict[str, Any]:
    """The facts of an attempt, as a journal holds them. What they call as a model argument has its type. Raises ValueError."""
    hints: dict[str, Any] = get_type_hints(ModelArguments)
    read = {"arguments": hints, "takeover": hints | {"label": str, "method": dict[str, Any]}, "settings": {"seed": int}}
    read["takeover"] |= dict.fromkeys(("base", "guide", "plugins"), dict[str, Any])
    checked: dict[str, Any] = check(facts, dict[str, Any], "facts")
    check(checked.get("library_versions"), dict[str, Any] | None, "facts.library_versions")
    check(checked.get("tasks"), list[tuple[str, dict[str, Any]]] | None, "facts.tasks")
    for part, of_part in read.items():
        values = check(checked.get(part), dict[str, Any] | None, f"facts.{part}") or {}
        for name in values.keys() & of_part.keys():
            check(values[name], of_part[name] | None, f"facts.{part}.{name}")
    return checked


def list_versions(facts: Mapping[str, Any]) -> str:
    """The versions of libraries that an attempt ran with, in a line."""
    return ", ".join(f"{name} {version}" for name, version in (facts.get("library_versions") or {}).items())


# Counts of tokens, passes and samples


def summarize_samples(by_task: Mapping[str, Sequence[Sample]], rate_of_nothing: float = 0.0) -> dict[str, Any]:
    """The counts of the whole run, and of each task under `per_task`; of truncated samples the share, and their scores."""

    def report(samples: Sequence[Sample]) -> dict[str, Any]:
        cut = [sample for sample in samples if sample.truncated]
        sums, of_cut = (add_up(of, (*COUNTS, "score_sum", "spikes")) for of in (samples, cut))
        counts = {name: sums[name] for name in COUNTS}
        counts |= {"samples": len(samples), "truncated": len(cut) / len(samples) if samples else 0.0}
        described = {"tokens": of_cut["tokens"], **_describe_rates(of_cut, 0.0)} if cut else None
        return {**counts, **_describe_rates(sums, rate_of_nothing), "of_truncated": described}

    whole = [sample for samples in by_task.values() for sample in samples]
    return {**report(whole), "per_task": {task: report(by_task[task]) for task in sorted(by_task)}}


def add_up(parts: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """The sums of these counts of samples or tasks; None where one part's count is not known."""
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return {name: None if None in values else sum(values) for name, values in columns.items()}


def _describe_rates(sums: Mapping[str, Any], rate_of_nothing: float) -> dict[str, float | None]:
    """`gamma`, the share of tokens that the donor wrote; and what explains it: the mean score in nats, the share of spikes."""
    tokens, scores, spikes = (sums[name] for name in ("tokens", "score_sum", "spikes"))
    return {
        "realized_rate": sums["takeovers"] / tokens if tokens else rate_of_nothing,
        "mean_score": round(scores / tokens, 5) if tokens and scores is not None else None,
        "spike_share": round(spikes / tokens, 5) if tokens and spikes is not None else None,
    }
