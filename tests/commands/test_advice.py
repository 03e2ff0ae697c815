"""Commands that our errors print work when they are pasted."""

import contextvars
import re
import shlex
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance

from lm_eval_takeover.calibration.files import calibration_command, note_tasks
from lm_eval_takeover.cli import build_parser, main
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.model import GuidedTakeover

pytestmark = pytest.mark.slow
ASKED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 2, "until": []}
FEW = ["--num_prompts", "3", "--num_held_out", "3", "--max_gen_toks", "8", "--nearest"]


def write(lm, **settings):
    return lm.generate_until([Instance("generate_until", {}, ("2 + 2 =", ASKED | settings), 0, metadata=("a", 0, 1))])


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({"policy": "segment", "length": "sentence", "target_rate": 0.3}, {}),
        ({"target_rate": 0.05}, {"temperature": 1.0, "top_k": 20}),
    ],
    ids=["method", "decoding"],
)
def test_the_calibrate_command_of_an_error_makes_what_the_run_needs(tmp_path, monkeypatch, capsys, arguments, settings):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CalibrationError) as caught:
        write(GuidedTakeover(calibration="demo", **arguments), **settings)
    (command,) = re.findall("`(.*?)`", str(caught.value))
    name, *words = shlex.split(command)
    assert name == "lm-eval-takeover"
    assert main([*words, *FEW]) == 0
    (text,) = write(GuidedTakeover(calibration="my-pair.json", **arguments), **settings)
    assert isinstance(text, str)


def test_the_command_of_an_error_writes_a_new_file_and_names_the_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my-pair.json").touch()

    def advise():
        note_tasks(["my_sums", "other"], "my tasks")
        return calibration_command("some/base", "some/guide", "forward", Path("prompts.jsonl"))

    words = shlex.split(contextvars.copy_context().run(advise))
    assert words[words.index("--out") + 1] == "my-pair-2.json" and "--overwrite" not in words
    options = build_parser().parse_args(words[1:])
    assert (options.task, options.include_path) == ("my_sums", Path("my tasks"))
