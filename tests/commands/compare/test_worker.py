"""The process that runs the rows: its logs, its exit status, and its end with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.pairs import ROOT
from helpers.processes import environment
from lm_eval.tasks._index import TaskIndex
from torch.utils import collect_env

from lm_eval_takeover.commands.compare import worker
from lm_eval_takeover.errors import ArgumentError


def test_a_call_that_fails_names_its_log_where_all_that_it_printed_is(monkeypatch, tmp_path, capfd):
    def fail(words):
        os.write(1, b"a notice of lm-eval\n")
        raise ArgumentError("it has no such model")

    monkeypatch.setattr(worker, "run_stock", fail)
    call = {"row": "guided", "words": [], "results": str(tmp_path / "results"), "log": str(tmp_path / "row" / "log")}
    with pytest.raises(ArgumentError, match="no such model"):
        worker.run_calls([call])
    assert capfd.readouterr().err == f"guided: failed; all that it printed is in '{tmp_path}/row/log'\n"
    assert (tmp_path / "row" / "log").read_text() == "a notice of lm-eval\n"
    assert not (tmp_path / "results").exists()


def test_all_calls_of_a_worker_share_what_lm_eval_reads(monkeypatch, tmp_path):
    plain = collect_env.get_pretty_env_info
    for owner, name in ((TaskIndex, "build"), (collect_env, "get_pretty_env_info")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # given back
    worker.read_harness_once()
    (tmp_path / "mine.yaml").write_text("task: mine\n")
    for _ in range(2):
        assert TaskIndex.build([tmp_path]).pop("mine")  # each caller has a copy
        (tmp_path / "mine.yaml").unlink(missing_ok=True)
    assert collect_env.get_pretty_env_info() is collect_env.get_pretty_env_info() != plain


def test_a_process_that_fails_ends_the_command_with_its_status(monkeypatch, tmp_path):
    (tmp_path / "failing.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with pytest.raises(worker.CallFailed, match="exit status 3"):
        worker.start_worker(["failing"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_comparison_leaves_no_process_behind(tmp_path):
    pid = tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    (tmp_path / "sleeping.py").write_text(text)
    code = "from lm_eval_takeover.commands.compare.worker import start_worker; start_worker(['sleeping'])"
    known = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    parent = subprocess.Popen([sys.executable, "-c", code], env=known, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    child = int(pid.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
