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


@pytest.mark.parametrize(
    ("scores", "tokens", "told"),
    [
        (3000, evidence.MOST_BYTES // 4 // 3000, "is too long to be read at once"),
        (0, 0, "another number"),
        (0, 31, "another number"),
    ],
    ids=["zeros in some KB", "none", "more"],
)
def test_scores_that_do_not_unpack_to_the_tokens_of_their_sample_are_refused(sound, tmp_path, scores, tokens, told):
    folder = shutil.copytree(sound / "base", tmp_path / "base")
    header = ScoresHeader("x", dict.fromkeys(f"score {number}" for number in range(scores)))
    content = pack_scores(header, {name: np.zeros(tokens) for name in list_score_columns(header.scores)})
    assert len(content) < 2**20
    plant(folder, "evidence", "kind = 'score'", content=content)
    if scores:
        plant(folder, "samples", tokens=tokens)
    with pytest.raises(RunDirError, match=f"{told}.*; `lm-eval-takeover score` repairs it"):
        main(["analyze", str(folder), "--out", str(tmp_path / "out"), "--only", "lorenz"])
