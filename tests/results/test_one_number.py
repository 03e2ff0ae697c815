"""One run has one number, in whichever command, and whether it reads lm-eval's files or the journal."""

import json
import re

import pytest
from helpers.demo_runs import run_demo, write_task
from helpers.stock import write_logs

from lm_eval_takeover.demo import PROMPT, problems

POLICIES = {"base": {"policy": "base"}, "random": {"policy": "random", "rate": 0.3}}
TASK = "worlds"
SOURCES = {  # documents of six problems
    "equal documents": [*[row for row in problems()[:2] for _ in range(4)], *problems()[2:6]],
    "shared prompts": [row | {"id": f"{at}-{copy}"} for at, row in enumerate(problems()[:6]) for copy in range(4)],
}


@pytest.fixture(scope="module", params=SOURCES)
def world(request, tmp_path_factory):
    """The folder of two runs: `NAME` has the run_dir, `results/NAME` lm-eval's files. And how many documents they have."""
    folder, rows = tmp_path_factory.mktemp("world"), SOURCES[request.param]
    decoding = {"max_gen_toks": 320, "until": ["\nProblem:"]}
    write_task(folder / "tasks", TASK, rows, doc_to_text=PROMPT.format(problem="{{problem}}"), generation_kwargs=decoding)
    for name, arguments in POLICIES.items():
        write_logs(folder / "results" / name, run_demo, folder / name, None, arguments, TASK, folder / "tasks")
    return folder, len(rows)


def test_one_run_has_one_number_in_five_commands(world, tmp_path, printed, answered):
    folder, count = world
    _, board = answered("leaderboard", *(folder / "results" / name for name in POLICIES))
    shown = {row["kind"]: row["tasks"][TASK] for row in board["rows"]}
    runs, analysis, names = [folder / name for name in POLICIES], tmp_path / "analysis", ("budget", "flips", "rates")
    printed("analyze", *runs, "--out", analysis, "--only", ",".join(names))
    budget, flips, rates = (json.loads((analysis / f"{name}.json").read_text()) for name in names)
    printed("report", analysis, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for kind, cell in shown.items():
        measured = next(row for row in budget if (row["run"], row["task"]) == (kind, TASK))
        figures = [f"{name}{end}" for name in ("acc", "pass8") for end in ("", "_low", "_high")]
        assert [measured[name] for name in figures] == [cell[name] for name in figures]
        assert f"{cell['acc']:.1%}\n[{cell['acc_low']:.1%}, {cell['acc_high']:.1%}]" in page
        baseline = tmp_path / f"{kind}.json"
        printed("regress", folder / "results" / kind, "--baseline", baseline, "--update")
        _, judged = answered("regress", folder / "results" / kind, "--baseline", baseline)
        assert judged["tasks"][TASK]["now"] == cell["acc"]
        answers = re.search(r"([\d,]+) of ([\d,]+) answers are right", printed("show", folder / kind, "--right"))
        assert [int(number) for number in answers.groups()] == [round(cell["acc"] * 8 * count), 8 * count]
        assert [row["doc_id"] for row in rates if row["run"] == kind] == [*range(count)]
    assert {row["problems"] for row in flips} == {6}  # each prompt is one
