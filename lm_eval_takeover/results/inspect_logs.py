"""Reads an `.eval` log of inspect_ai. An epoch is a sample here; a problem is missing if one of its epochs is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results import problems
from lm_eval_takeover.results.settings import Settings
from lm_eval_takeover.storage.digests import digest_of

_UNREAD = {"events", "attachments", "store"}


def read_log(path: Path, reading: problems.ReadOptions) -> tuple[str, Settings, str, Settings, problems.Problems, str]:
    """Returns model, its settings, task, its settings, problems, and the scorer that `acc` is of. Raises ResultsError."""
    try:
        from inspect_ai.log import read_eval_log, read_eval_log_samples
    except ImportError:
        reason = "is a log of inspect_ai, whose reader is not installed: pip install '.[inspect]' in a checkout"
        raise ArgumentError(f"'{path}' {reason}") from None
    try:
        header = read_eval_log(str(path), header_only=True)
        samples = list(read_eval_log_samples(str(path), all_samples_required=False, exclude_fields=_UNREAD))
    except Exception as error:  # its parts raise errors of many kinds
        reason = str(error).strip().partition("\n")[0]
        raise ResultsError(f"'{path}' cannot be read: {reason}; expected a log of `inspect eval`") from error
    spec, epochs = header.eval, header.eval.config.epochs or 1
    whole: dict[Any, list[Any]] = {}
    for sample in samples:
        whole.setdefault(sample.id, []).extend([] if sample.error else [sample])
    total = max(len(whole), len(spec.dataset.sample_ids or []))
    whole = {name: each for name, each in whole.items() if len(each) == epochs}
    reading.check(f"'{path}'", total - len(whole), len(whole))
    scores = {name: _score(each) for name, each in whole.items()}
    names = [name for name in next(iter(scores.values()), {}) if all(name in each for each in scores.values())]
    accuracy = reading.filter or problems.choose_accuracy(names)
    if accuracy not in names:
        present, expected = ", ".join(names) or "none", accuracy or "with numbers from 0 to 1"
        raise ResultsError(f"'{path}' has no scorer {expected} (--filter); it has {present}")
    graded = any(value not in (0, 1) for each in scores.values() for value in each[accuracy])
    samples_each = 1 if graded else epochs  # grades between wrong and right count as one, and have no Pass@k
    rows = []
    for number, (name, each) in enumerate(whole.items()):
        problem = each[0].input if isinstance(each[0].input, str) else [[m.role, m.text] for m in each[0].input]
        identity = digest_of([str(name), each[0].target, problem])
        texts = digest_of([identity, [sample.output.completion for sample in each]])
        means = {scorer: sum(scores[name][scorer]) / epochs for scorer in names}
        means = {problems.ACC: means.pop(accuracy), **means}
        rows.append(problems.Measured(identity, number, means, samples_each, texts))
    decoding = header.plan.config.model_dump(exclude_none=True, exclude={"seed"})
    settings = {"model": spec.model, **{f"generate.{name}": value for name, value in decoding.items()}}
    of_task = {"task_version": spec.task_version, "limit": spec.config.limit, "samples": epochs, "metric": accuracy}
    of_task |= {f"task_args.{name}": value for name, value in spec.task_args.items()}
    return spec.model, settings, spec.task, of_task, problems.collect_problems(rows, total - len(whole)), accuracy


def _score(samples: Sequence[Any]) -> dict[str, list[float]]:
    """Values of the epochs by scorer (and part, where it has several), if all are from 0 to 1."""
    from inspect_ai.scorer import value_to_float

    number, values = value_to_float(), dict[str, list[float]]()
    for sample in samples:
        for scorer, score in (sample.scores or {}).items():
            parts = score.value if isinstance(score.value, dict) else {"": score.value}
            for part, value in parts.items():
                if not isinstance(value, list | None) and problems.is_share(share := number(value)):
                    values.setdefault(f"{scorer}/{part}" if part else scorer, []).append(share)
    return {name: each for name, each in values.items() if len(each) == len(samples)}
