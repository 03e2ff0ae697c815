"""The command `lm-eval-takeover` finds the folders of its subcommands, knows none of their options, and imports what it needs."""

import ast
import os
import shutil
import subprocess

import pytest
from helpers.pairs import ROOT
from helpers.processes import TAKEOVER, environment, run, run_code

from lm_eval_takeover import cli, commands, stopping
from lm_eval_takeover.storage.files import write_text

COMMAND = """
HELP = "say a word"
DESCRIPTION = "Say a word, and end with a status."
EXAMPLE = "example: lm-eval-takeover greet --word-to-say hello"

def add_options(parser):
    parser.add_argument("--word_to_say", required=True)
    parser.add_argument("--status", type=int, default=0)

def run(options):
    print(options.word_to_say)
    return options.status
"""


@pytest.fixture
def greet(tmp_path, monkeypatch):
    """A subcommand in a folder of its own."""
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "__init__.py").touch()
    (tmp_path / "greet" / "command.py").write_text(COMMAND)
    (tmp_path / "_private.py").write_text("raise AssertionError('is no command')")
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])


def test_a_folder_in_the_folder_of_commands_is_a_subcommand(greet, capsys):
    assert cli.main(["greet", "--word_to_say", "hello", "--status", "1"]) == 1
    for words in (["--word-to-say", "a-b"], ["--word-to-say=a-b"], ["--word_to_say=--a-b"]):  # only names lose their dashes
        assert cli.main(["greet", *words]) == 0
    assert capsys.readouterr().out == "hello\na-b\na-b\n--a-b\n"
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["--help"])
    assert "say a word" in capsys.readouterr().out


def test_a_wrong_call_is_one_line_and_status_2(greet, capsys):
    for words, text in (
        ([], "error: the following arguments are required: COMMAND (see lm-eval-takeover --help)"),
        (["--versio"], "error: unknown option '--versio'; did you mean '--version'? (see lm-eval-takeover --help)"),
        (["grete"], "error: unknown command 'grete'; did you mean 'greet'? (see lm-eval-takeover --help)"),
        (["greet"], "error: the following arguments are required: --word_to_say (see lm-eval-takeover greet --help)"),
        (["greet", "--word_to_sya", "y"], "error: unknown option '--word_to_sya'; did you mean '--word_to_say'? (see "),
        (["greet", "--word_to_say", "x", "y"], "error: unexpected word 'y' (see lm-eval-takeover greet --help)"),
        (["greet", "--word_to_say", ""], "error: a word is empty; is a variable of the shell not set? (see "),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 2
        printed = capsys.readouterr().err
        assert printed.startswith(text) and printed.count("\n") == 1


@pytest.mark.parametrize("name", [name for name, _ in cli.find_commands()])
def test_every_command_has_a_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([name, "--help"])
    assert f"\n  lm-eval-takeover {name} " in capsys.readouterr().out


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt, 130), (stopping.Terminated, 143)])
def test_a_command_that_is_stopped_says_what_it_wrote(greet, stop, status, tmp_path, monkeypatch, capsys):
    def run_until_stopped(options):
        for number in range(options.status):
            write_text(tmp_path / f"{number}.txt", "x")
        raise stop

    command = dict(cli.find_commands())["greet"]
    monkeypatch.setattr(command, "run", run_until_stopped)
    for files, words in ((0, "nothing was written"), (2, f"files that were written: 2, the last one '{tmp_path / '1.txt'}'; ")):
        assert cli.main(["greet", "--word_to_say", "x", "--status", str(files)]) == status
        assert capsys.readouterr().err.startswith(f"stopped; {words}")


def test_standard_output_that_is_full_or_closed_is_one_line_and_status_2():
    words, env = [*TAKEOVER, "leaderboard", "--published"], environment(PYTHONUNBUFFERED="")
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: standard output cannot be written: No space left on device")
    reading, writing = os.pipe()
    os.close(reading)  # as `| true`
    done = subprocess.run([*TAKEOVER, "--version"], stdout=writing, stderr=subprocess.PIPE, env=env)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
    env["PYTHONIOENCODING"] = "ascii"  # letters that it lacks are codes
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, b"")  # as `>&-`


def test_names_are_utf8_in_the_c_locale_too(tmp_path):
    """With Python's UTF-8 mode off, `é` arrives as two bytes that are no text."""
    model = f"base=/none,guide=/none,run_dir={tmp_path}/é"
    for words, told in (
        (["lm_eval_takeover.cli", "show", f"{tmp_path}/é"], f"run_dir='{tmp_path}/é' is not a folder"),
        (["lm_eval", "run", "--model", "guided-takeover", "--model_args", model, "--tasks", "takeover_demo"], "base='/none'"),
    ):
        done = run([*TAKEOVER[:2], *words], env=environment(LC_ALL="C", PYTHONUTF8="0"), encoding="utf-8")
        assert done.returncode == 2 and told in done.stderr, done.stderr


def test_every_kind_of_name_is_listed(capsys):
    assert cli.main(["list"]) == 0
    printed = capsys.readouterr().out
    names = {kind: [line.split()[0] for line in lines.splitlines() if line[2:3].strip()]
             for kind, _, lines in (part.partition("\n") for part in printed.split("\n\n"))}  # fmt: skip
    assert {"ce", "rkl", "js", "entropy"} <= set(names["scores"])
    assert {"disagreement", "random", "early", "base", "guide"} <= set(names["policies"])
    assert "demo" in names["calibrations"] and {"takeover_demo", "takeover_paper"} <= set(names["tasks"])
    assert "takeover_paper_all  takeover_paper, takeover_gpqa_diamond_50\n" in printed
    assert max(map(len, printed.splitlines())) <= 80


# What every start, task files under any model type, and commands that read runs import

MODELS = ("torch", "transformers")
HARNESS = (*MODELS, "lm_eval", "datasets", "numpy", "math_verify")
# Of files that are there.
READERS = ("commands.show.rollout", "lab.analyze.tables", "lab.frontier.output", "lab.report.building")
LOGS = str(ROOT / "tests" / "results" / "data" / "hf")
CALLS = """
import contextlib, io
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import TakeoverError
for words in {!r}:
    with contextlib.suppress(SystemExit, TakeoverError), contextlib.redirect_stdout(io.StringIO()):
        main(words)
"""


def list_loaded(*stages):
    """After each code those of its modules that are loaded, all in one process."""
    script = f"""
import sys
found = []
for code, forbidden in {stages!r}:
    exec(code)
    found.append([name for name in forbidden if name in sys.modules])
print(found)
"""
    return ast.literal_eval(run_code(script, status=0, cwd=ROOT).stdout)


def test_imports_are_light():
    """In one process, where each step may load more than the one before."""
    starts = "import lm_eval_takeover, lm_eval_takeover.lm_eval_hooks; lm_eval_takeover.register_score"
    helps = [["--help"], ["calibrate", "--help"]]
    reads = [["leaderboard", LOGS], ["regress", LOGS, "--baseline", LOGS], ["score", "no/run.json"]]
    reads += [["effects", "no/run.json", "--dry_run", "--out", "no"], ["score", "no", "--guide", "/no/such"]]
    compare, calibrate = ["compare", "--tasks", "takeover_demo", "--run_dir", "no"], ["calibrate", "--out", "no.json"]
    reads += [[*compare, "--plugins", "no.py"], [*compare, "--calibration", "no.json"], [*compare, "--rows", "bsae"]]
    reads += [[*calibrate, "--prompts", "no.jsonl"], [*calibrate, "--prompts", "p", "--plugins", "no.py"]]
    package = ROOT / "lm_eval_takeover"
    light = [path for folder in ("answers", "tasks", "storage", "results") for path in (package / folder).glob("*.py")]
    names = ", ".join(".".join(path.with_suffix("").relative_to(ROOT).parts) for path in light if path.stem != "__init__")
    logs = CALLS.format([["leaderboard", LOGS]])
    assert list_loaded((logs, ("lm_eval_takeover.answers", "lm_eval_takeover.runs.run_reader"))) == [[]]
    stages = [
        (starts + CALLS.format(helps), HARNESS),
        (f"import {', '.join(f'lm_eval_takeover.{name}' for name in READERS)}", (*MODELS, "datasets", "lm_eval")),
        (CALLS.format(reads), (*MODELS, "datasets", "lm_eval", "scipy.stats")),
        (f"import {names}", MODELS),
    ]
    assert list_loaded(*stages) == [[]] * len(stages)


def test_commands_that_read_a_run_load_no_torch(demo_runs, tmp_path):
    shutil.copytree(demo_runs["guided"].parent, tmp_path / "runs")
    runs, analysis = [str(tmp_path / "runs" / name) for name in ("base", "guided")], str(tmp_path / "analysis")
    calls = [["show", runs[1]], ["analyze", *runs, "--only", "budget,flips,planning", "--out", analysis]]
    calls += [["report", analysis, "--out", str(tmp_path / "report.html")]]
    dry = [["effects", runs[1], "--dry_run", "--out", str(tmp_path / "effects")]]
    heavy = ("torch", "lm_eval", "sklearn", "scipy.stats")
    assert list_loaded((CALLS.format(calls), heavy), (CALLS.format(dry), ("torch",))) == [[], []]
    assert (tmp_path / "analysis" / "planning.json").exists() and (tmp_path / "report.html").exists()
