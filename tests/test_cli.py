"""The command `lm-eval-takeover` finds the folders of its subcommands, knows none of their options, and starts fast."""

import os
import subprocess

import pytest
from helpers.processes import TAKEOVER, environment, run

from lm_eval_takeover import cli, commands, stopping
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError
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
def greet(tmp_path):
    """A subcommand in a folder of its own."""
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "__init__.py").touch()
    (tmp_path / "greet" / "command.py").write_text(COMMAND)
    (tmp_path / "_private.py").write_text("raise AssertionError('is no command')")
    commands.__path__.append(str(tmp_path))
    yield
    commands.__path__.remove(str(tmp_path))


def test_a_folder_in_the_folder_of_commands_is_a_subcommand(greet, capsys):
    assert cli.main(["greet", "--word_to_say", "hello"]) == 0
    assert capsys.readouterr().out == "hello\n"
    assert cli.main(["greet", "--word_to_say", "hello", "--status", "1"]) == 1
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["--help"])
    assert "say a word" in capsys.readouterr().out


def test_dashes_in_the_name_of_an_option_are_underscores_and_values_stay_what_they_are(greet, capsys):
    for words in (["--word-to-say", "a-b"], ["--word-to-say=a-b"], ["--word_to_say=--a-b"]):
        assert cli.main(["greet", *words]) == 0
    assert capsys.readouterr().out == "a-b\na-b\n--a-b\n"


def test_a_wrong_call_is_one_line_and_status_2(greet, capsys):
    for words, text in (
        ([], "error: the following arguments are required: COMMAND (see lm-eval-takeover --help)"),
        (["--versio"], "error: unknown option '--versio'; did you mean '--version'? (see lm-eval-takeover --help)"),
        (["grete"], "error: unknown command 'grete'; did you mean 'greet'? (see lm-eval-takeover --help)"),
        (["greet"], "error: the following arguments are required: --word_to_say (see lm-eval-takeover greet --help)"),
        (["greet", "--word_to_sya", "y"], "error: unknown option '--word_to_sya'; did you mean '--word_to_say'? (see "),
        (["greet", "--word_to_say", "x", "y"], "error: unexpected word 'y' (see lm-eval-takeover greet --help)"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 2
        printed = capsys.readouterr().err
        assert printed.startswith(text)
        assert printed.count("\n") == 1


@pytest.mark.parametrize("name", [name for name, _ in cli.find_commands()])
def test_every_command_has_a_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([name, "--help"])
    printed = capsys.readouterr().out
    assert f"\n  lm-eval-takeover {name} " in printed


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
    env["PYTHONIOENCODING"] = "ascii"  # letters that it lacks are codes
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, b"")  # as `>&-`


@pytest.mark.slow
def test_under_the_command_an_error_of_the_user_is_one_line_and_status_2(capsys):
    with pytest.raises(ArgumentError):  # raised as such to Python callers
        cli.main(["list", "score"])
    done = run([*TAKEOVER, "list", "score"])
    assert (done.returncode, done.stderr) == (2, "error: KIND 'score' is not known; did you mean 'scores'?\n")
    assert cli.main(["leaderboard", "x" * 300]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "cannot be used: File name too long" in printed


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
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    names = {kind: [line.split()[0] for line in lines.splitlines() if line[2:3].strip()]
             for kind, _, lines in (part.partition("\n") for part in printed.split("\n\n"))}  # fmt: skip
    assert {"ce", "rkl", "js", "entropy"} <= set(names["scores"])
    assert {"disagreement", "random", "early", "base", "guide"} <= set(names["policies"])
    assert "demo" in names["calibrations"] and {"takeover_demo", "takeover_paper"} <= set(names["tasks"])
    assert max(map(len, printed.splitlines())) <= 80
