"""A baseline of a good run, and runs that are compared with it."""

import json
import shutil

import numpy as np
import pytest
from helpers.results import TASK, digest, draw_counts, takeover, write_results

from lm_eval_takeover.cli import main

FILTERS = ("strict-match", "flexible-extract")


def write_exact(folder, right, *, sampled=False, shots=5, field=None):
    """A greedy run of stock lm-eval on `gsm8k`, with one verdict a problem; `field` is a field of its documents."""
    folder.mkdir()
    rows = []
    for number, verdict in enumerate(right):
        digests = {f"{name}_hash": digest(f"{name} {number}") for name in ("doc", "prompt", "target")}
        row = {"doc_id": number, "doc": {"question": f"{number}"} | ({"family": field[number]} if field else {}), **digests}
        row |= {"arguments": {"gen_args_0": {"arg_0": f"{number}", "arg_1": {}}}, "resps": [[f"{number} {verdict}"]]}
        rows += [row | {"filter": name, "filtered_resps": ["1"], "metrics": ["exact_match"], "exact_match": float(verdict)}
                 for name in FILTERS]  # fmt: skip
    means = {f"exact_match,{name}": float(np.mean(right)) for name in FILTERS}
    decoding = {"do_sample": True, "temperature": 0.7} if sampled else {"do_sample": False, "temperature": 0.0}
    content = {
        "results": {"gsm8k": {"alias": "gsm8k", **means}},
        "configs": {"gsm8k": {"task": "gsm8k", "repeats": 1, "generation_kwargs": decoding}},
        "versions": {"gsm8k": 3.0}, "n-shot": {"gsm8k": shots}, "higher_is_better": {"gsm8k": {"exact_match": True}},
        "n-samples": {"gsm8k": {"original": 1319, "effective": len(right)}},
        "config": {"model": "vllm", "model_args": {"pretrained": "acme/Small-8B"}},
    }  # fmt: skip
    (folder / "results_2026-01-01T00-00-00.json").write_text(json.dumps(content))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text(lines)
    return folder


@pytest.fixture
def regress(capsys):
    """`regress` with these words: `(status, JSON)`."""

    def call(*words):
        capsys.readouterr()
        status = main(["regress", *map(str, words), "--format", "json"])
        return status, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A good run, and its baseline."""
    folder = tmp_path_factory.mktemp("baseline")
    write_results(folder / "good", {TASK: draw_counts(1)}, run=takeover())
    assert main(["regress", str(folder / "good"), "--baseline", str(folder / "b.json"), "--update"]) == 0
    return folder


@pytest.fixture
def check(tmp_path, made, regress):
    """Writes a run, and compares it with the baseline of another: `(status, JSON)`. Their folder is `check.folder`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)

    def compare(correct, *words, **written):
        folder = write_results(tmp_path / "now", correct, **{"run": takeover(seed=1), **written})
        return regress(folder, "--baseline", tmp_path / "b.json", *words)

    compare.folder = tmp_path
    return compare
