"""A guided run of the demo and the effects of its takeovers, for tests of several studies."""

import contextlib
import io
import shutil
from hashlib import sha1

import pytest
import torch
from helpers.demo_runs import run_demo
from helpers.read_once import made_once
from safetensors.torch import load_file, save_file

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import DEMO

NOISE = {"step-9": 1.0, "step-20": 0.6}  # on the guide's weights, by revision


@pytest.fixture(scope="session")
def strict_run(shared_folder):
    """Twelve problems of the demo, guided by a gate that leaves some of the decisions and all synonyms to the base."""
    return made_once(shared_folder / "strict-run", lambda new: run_demo(new, 12, {"tau": 11.0, "kappa": 0.0, "batch_size": 96}))


@pytest.fixture(scope="session")
def measured(strict_run, shared_folder):
    """Takeovers and controls of that run, four continuations by the base behind each token; `printed.txt` is what was said."""

    def make(new):
        size = ["--takeovers", "30", "--controls", "15", "--continuations", "4", "--batch_size", "180"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(["effects", str(strict_run), "--out", str(new), *size]) == 0
        (new / "printed.txt").write_text(said.getvalue())

    return made_once(shared_folder / "strict-effects", make)


@pytest.fixture
def checkpoints(shared_folder, monkeypatch):
    """Revisions of `acme/guide` in the hub's cache: the demo's guide with less and less noise. Their commits."""
    commits = {revision: sha1(revision.encode()).hexdigest() for revision in NOISE}

    def make(new):
        refs, snapshots = (new / "models--acme--guide" / name for name in ("refs", "snapshots"))
        refs.mkdir(parents=True)
        for revision, commit in commits.items():
            (refs / revision).write_text(commit)
            weights, random = load_file(DEMO["guide"] / "model.safetensors"), torch.Generator().manual_seed(0)
            for weight in weights.values():
                weight += NOISE[revision] * weight.std() * torch.randn(weight.shape, generator=random)
            save_file(weights, shutil.copytree(DEMO["guide"], snapshots / commit) / "model.safetensors", {"format": "pt"})
        (refs / "main").write_text(commits["step-20"])

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(made_once(shared_folder / "checkpoints", make)))
    return commits
