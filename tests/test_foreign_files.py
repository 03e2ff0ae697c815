"""A file of a stranger is read, or refused in a line by an error of ours, whatever was changed in it."""

import collections
import shutil

import numpy as np
import pytest
from helpers.foreign_files import KINDS, make_runs, make_sound, try_mix, try_one
from helpers.run_dirs import plant

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import RunDirError, TakeoverError
from lm_eval_takeover.runs import evidence
from lm_eval_takeover.runs.evidence import ScoresHeader, list_score_columns, pack_scores


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A sound file of each kind, which is read."""
    folder = tmp_path_factory.mktemp("foreign") / "sound"
    make_sound(folder)
    for kind, (_, read) in KINDS.items():
        read(shutil.copytree(folder, folder.with_name(kind)))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused_in_a_line(kind, sound):
    said = []
    for seed in range(8):
        try:
            try_one(kind, sound, sound.with_name("changed"), seed)
        except TakeoverError as error:
            said.append(str(error))
    assert all(len(text.splitlines()) == 1 for text in said), said


def test_files_of_two_runs_are_never_read_as_one(tmp_path):
    truth = make_runs(tmp_path / "sound")
    outcomes = collections.Counter(try_mix(tmp_path / "sound", truth, tmp_path / "mixed", seed) for seed in range(40))
    assert outcomes.keys() == {"read", "refused"}


def test_scores_that_say_they_expand_are_refused_before_they_are_read(sound, tmp_path):
    """A line that names thousands of columns, of zeros in some KB."""
    folder = shutil.copytree(sound / "base", tmp_path / "base")
    scores = dict.fromkeys(f"score {number}" for number in range(3000))
    header, count = ScoresHeader("x", scores), evidence.MOST_BYTES // 4 // 3000
    content = pack_scores(header, {name: np.zeros(count) for name in list_score_columns(scores)})
    assert len(content) < 2**20
    plant(folder, "samples", tokens=count)
    plant(folder, "evidence", "kind = 'score'", content=content)
    message = rf"the evidence of {count:,} tokens is too long to be read at once; `lm-eval-takeover score` repairs it"
    with pytest.raises(RunDirError, match=message):
        main(["analyze", str(folder), "--out", str(tmp_path / "out"), "--only", "lorenz"])


@pytest.mark.parametrize("tokens", [0, 29, 31])
def test_scores_of_another_number_of_tokens_are_refused(sound, tmp_path, tokens):
    folder = shutil.copytree(sound / "base", tmp_path / "base")
    content = pack_scores(ScoresHeader("x", {}), {name: np.ones(tokens) for name in list_score_columns([])})
    plant(folder, "evidence", "kind = 'score'", content=content)
    with pytest.raises(RunDirError, match=r"another number of tokens than its sample: .*; `lm-eval-takeover score` repairs it"):
        main(["analyze", str(folder), "--out", str(tmp_path / "out"), "--only", "lorenz"])
