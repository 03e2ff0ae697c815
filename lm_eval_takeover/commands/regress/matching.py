"""Whether two runs may be compared: they have the same tasks, problems, samples and settings, but for what is allowed."""

from collections.abc import Sequence
from dataclasses import replace

from lm_eval_takeover.errors import ArgumentError, ResultsError, nearest
from lm_eval_takeover.results.documents import find_differences
from lm_eval_takeover.results.files import Run, TaskResult
from lm_eval_takeover.results.problems import align


def check_settings(old: Run, new: Run, allowed: Sequence[str], where: str) -> list[str]:
    """List what differs, all of it allowed, in runs of the same problems. Raises ArgumentError that lists all else."""
    pairs = {task: (side, new.tasks[task]) for task, side in sorted(old.tasks.items())}
    sides = [("", old.settings, new.settings)]
    sides += [(f"{task} ", one.settings, other.settings) for task, (one, other) in pairs.items()]
    names = {"prompts", *(name for _, *both in sides for settings in both for name in settings)}
    found = dict[str, str]()  # by line the name of the setting
    for place, before, now in sides:
        found |= {f"{place}{line}": name for name, line in find_differences(before, now).items()}
    for task, (one, other) in pairs.items():
        prompts = [dict(zip(side.problems.ids, side.problems.prompts, strict=False)) for side in (one, other)]
        if all(prompts) and prompts[0] != prompts[1] and one.settings == other.settings:
            found[f"{task} prompts: others, though all settings are the same; other examples?"] = "prompts"
    for name in allowed:
        if name not in names:
            differing = f"; they differ in {', '.join(sorted({*found.values()}))}" if found else ""
            raise ArgumentError(f"--allow '{name}' is not a setting of these runs; {nearest(name, names)}{differing}")
    again = ", judge the older run again with `rescore`" if "scorer" in found.values() else ""
    if refused := [line for line, name in found.items() if name not in allowed]:
        raise ArgumentError(
            f"settings differ from {where}: {'; '.join(refused)}; run with the baseline's settings{again}, accept these with "
            f"`--allow {' '.join(sorted({*allowed, *found.values()}))}`, or take this run as the new baseline with --update"
        )
    return list(found)


def align_runs(old: Run, new: Run, max_missing: float) -> tuple[Run, Run]:
    """Both runs, of the problems that both have. Raises ResultsError if one lacks a task, or too many problems."""
    for ours, theirs, where in ((old, new, "the run"), (new, old, "the baseline")):
        if missing := sorted(ours.tasks.keys() - theirs.tasks.keys()):
            raise ResultsError(f"{', '.join(missing)}: missing in {where}; choose common tasks with --tasks, or --update")
    kept = [dict[str, TaskResult](), dict[str, TaskResult]()]
    for task, results in {task: (old.tasks[task], new.tasks[task]) for task in old.tasks}.items():
        before, now = (result.problems for result in results)
        if (sides := align([before, now], max_missing)) is None:
            lost = {"the run": {*before.ids} - {*now.ids}, "the baseline": {*now.ids} - {*before.ids}}
            where = max(lost, key=lambda name: len(lost[name]))
            raise ResultsError(
                f"{task}: the baseline has {len(before)} problems, the run {len(now)}; {len(lost[where])} are missing in "
                f"{where}, and at most a share of {max_missing:g} may be (--max_missing); use the same --limit, or write a new "
                "baseline with --update"
            )
        if before.samples != now.samples:
            raise ResultsError(f"{task}: {now.samples} samples a problem, the baseline has {before.samples}")
        for tasks, result, problems in zip(kept, results, sides, strict=True):
            tasks[task] = replace(result, problems=problems)
    return replace(old, tasks=kept[0]), replace(new, tasks=kept[1])
