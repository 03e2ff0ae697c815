"""What was asked stands in the run_dir, once, whichever rank or attempt adds it."""

import threading
from types import SimpleNamespace

import datasets
import pandas as pd
import pytest

from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.runs.layout import PROMPTS, PROMPTS_LOCK
from lm_eval_takeover.runs.parquet import PROMPT_SCHEMA, add_prompts, make_prompt, read_prompts
from lm_eval_takeover.storage.files import Lock
from lm_eval_takeover.tasks.sampled import GPQA


def make_rows(task, numbers, ending=""):
    instances = [
        SimpleNamespace(task_name=task, doc_id=n, doc={"problem": f"p{n}", "answer": n}, args=(f"ask p{n}{ending}", {}))
        for n in numbers
    ]
    requests = [Request((n, n + 1, *map(ord, ending)), 0, 5, Sampling(), label="r") for n in numbers]
    return list(map(make_prompt, instances, requests))


def test_rows_are_added_once_and_read_by_anyone(tmp_path):
    add_prompts(tmp_path, 2 * make_rows("b", [3, 1]))
    add_prompts(tmp_path, make_rows("a", [7]))
    written = (tmp_path / PROMPTS).stat().st_mtime_ns
    add_prompts(tmp_path, make_rows("b", [1]))  # a resumed run
    assert (tmp_path / PROMPTS).stat().st_mtime_ns == written
    table = pd.read_parquet(tmp_path / PROMPTS)
    assert list(table) == PROMPT_SCHEMA.names
    assert list(zip(table["task"], table["doc_id"], strict=True)) == [("a", 7), ("b", 1), ("b", 3)]
    add_prompts(tmp_path, make_rows("b", [3], "!"))  # asked in another way
    assert [row["prompt"] for row in read_prompts(tmp_path)[2:]] == ["ask p3", "ask p3!"]
    assert read_prompts(tmp_path)[0] == {
        "task": "a", "doc_id": 7, "prompt": "ask p7", "prompt_ids": [7, 8], "problem": "p7", "answer": "7",
    }  # fmt: skip


def test_ranks_that_add_at_once_lose_nothing(tmp_path):
    held = Lock(tmp_path / PROMPTS_LOCK)
    ranks = [threading.Thread(target=add_prompts, args=(tmp_path, make_rows("a", [n]))) for n in range(6)]
    for rank in ranks:
        rank.start()
    held.release()
    for rank in ranks:
        rank.join()
    assert [row["doc_id"] for row in read_prompts(tmp_path)] == list(range(6))


def test_a_file_that_cannot_be_read_is_written_anew(tmp_path, caplog):
    (tmp_path / PROMPTS).write_bytes(b"noise")
    add_prompts(tmp_path, make_rows("a", [1]))
    assert "written again" in caplog.text
    assert len(read_prompts(tmp_path)) == 1


@pytest.mark.parametrize("withheld", [True, False])
def test_withheld_questions_leave_only_their_ids(withheld):
    data = {"test": datasets.Dataset.from_list([{"problem": "p1", "answer": "1"}])}
    task = {"task": "secret", "doc_to_text": "{{problem}}", "custom_dataset": lambda **_: data}
    GPQA(task | {"metadata": {"withhold_questions": withheld}})
    (row,) = make_rows("secret", [1])
    assert (row["prompt"], row["problem"]) == ((None, None) if withheld else ("ask p1", "p1"))
    assert (row["prompt_ids"], row["answer"]) == ([1, 2], "1")
