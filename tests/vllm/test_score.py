"""`score --backend vllm`: the file that the transformers engines write."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.demo_runs import run_demo

from lm_eval_takeover.cli import main
from lm_eval_takeover.method.observations import COUNTED

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
NAME = ["doc_id", "sample", "position"]


def read(folder):
    tables = [pq.read_table(path) for path in sorted((folder / "scores").glob("*.parquet"))]
    return pa.concat_tables(tables).drop("task").sort_by([(name, "ascending") for name in NAME])


def test_the_scores_of_a_run_are_those_of_the_transformers_engines(tmp_path, demo_folders):
    run_demo(tmp_path / "run", 2, demo_folders | {"policy": "base", "dtype": "float32"}, gen_kwargs="max_gen_toks=60")
    again = shutil.copytree(tmp_path / "run", tmp_path / "again")
    assert main(["score", str(tmp_path / "run")]) == 0
    engine = "enforce_eager=True,max_num_seqs=16,max_model_len=384,kv_cache_memory_bytes=268435456"
    assert main(["score", str(again), "--backend", "vllm", "--engine_args", engine]) == 0
    want, got = read(tmp_path / "run"), read(again)
    assert got.schema == want.schema and len(got) > 500
    for name in want.schema.names:
        if name in (*NAME, "token_id", *COUNTED):
            assert got[name].to_pylist() == want[name].to_pylist(), name
        else:
            np.testing.assert_allclose(got[name], want[name], atol=1e-4, err_msg=name)
