"""`lm-eval-takeover calibrate` as a user calls it: what it writes and prints, and what it survives."""

import json
import signal
import subprocess
import time

import pytest
from helpers.pairs import ROOT
from helpers.processes import TAKEOVER, environment, run

from lm_eval_takeover.calibration.files import read_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, PROBLEMS
from lm_eval_takeover.errors import TakeoverError

pytestmark = pytest.mark.slow


def test_calibrate_writes_a_file_that_lm_eval_accepts(tmp_path, capsys):
    out = tmp_path / "mine.json"
    call = ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "12", "--out", str(out)]
    assert main(call) == 0
    printed = capsys.readouterr().out
    assert "|ce|" in printed
    assert "12 rollouts" in printed
    assert "few tokens: below a spike ratio of 0.0" in printed
    content = json.loads(out.read_text())
    assert content["scores"].keys() == {"ce", "rkl", "entropy", "js"}
    assert content["base"]["id"] == "demo-base"
    assert len(content["prompts"]["indices"]) == 12
    from lm_eval_takeover.model import GuidedTakeover

    for score in ("ce", "rkl", "js"):
        lm = GuidedTakeover(calibration=str(out), spike_ratio=0.05, score=score)
        assert lm.policy.gate.tau > 0
        assert lm.get_model_info()["takeover"]["calibration"] == "mine"
    assert GuidedTakeover(calibration=str(out), policy="entropy").policy.score == "entropy"
    first = out.read_text()
    assert main(call) == 0
    assert out.read_text() == first  # deterministic for a seed


def test_calibrate_reads_models_and_data_of_the_hub(hub, tmp_path):
    from serve_hub import environment as pointed_at

    out = tmp_path / "gsm8k.json"
    options = ["--base", "acme/base@main", "--guide", "acme/guide", "--num_prompts", "3", "--max_gen_toks", "8"]
    done = run(
        [*TAKEOVER, "calibrate", "--prompts", "openai/gsm8k:main", *options, "--out", out],
        env=pointed_at(hub.url, str(tmp_path / "hf-home")),
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    assert content["base"]["id"] == "acme/base"
    assert len(content["guide"]["revision"]) == 40  # the hub's commit
    prompts = content["prompts"]
    assert (prompts["dataset"], prompts["split"], prompts["field"]) == ("openai/gsm8k:main", "train", "question")
    assert prompts["template"].startswith("Problem: {{question}}\nPlease reason step by step")
    assert "Licence of the prompts: " in out.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("options", "token", "text"),
    [
        (["openai/gsm8k:main", "--split", "test"], None, "takeover_gsm8k: rows"),
        (["HuggingFaceH4/MATH-500", "--split", "test", "--field", "problem"], None, "takeover_math500: rows"),
        (["Idavidrein/gpqa:gpqa_diamond", "--field", "Question"], "hf_token", "takeover_gpqa_diamond: rows"),
    ],
)
def test_calibrate_refuses_test_sets_of_the_hub(hub, tmp_path, options, token, text):
    from serve_hub import environment as pointed_at

    out = tmp_path / "out.json"
    env = pointed_at(hub.url, str(tmp_path / "hf-home")) | ({"HF_TOKEN": token} if token else {})
    done = run([*TAKEOVER, "calibrate", "--prompts", *options, "--num_prompts", "20", "--out", out], env=env)
    assert done.returncode == 2
    assert text in done.stderr.strip().splitlines()[-1]
    assert not out.exists()


def test_calibrate_errors_are_one_line_and_status_2(tmp_path, capsys):
    empty, wrong = tmp_path / "empty.jsonl", tmp_path / "wrong.jsonl"
    empty.write_text("")
    wrong.write_text('{"text": "hello"}\n')
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "word " * 9000}) + "\n")
    out = tmp_path / "out.json"
    for arguments, text in (
        (["--prompts", empty], f"error: --prompts '{empty}' holds no prompt"),
        (["--prompts", wrong], f"error: --prompts '{wrong}': row 1 has no text in field 'prompt' (its fields: text)"),
        (["--prompts", long], "error: --prompts: all 1 prompts are empty or longer than the context of 2048 tokens"),
        (["--prompts", tmp_path / "none.jsonl"], "is no file, and as a hub data set"),
        (["--promts", empty], "error: unrecognized arguments: --promts"),
        ([], "error: --prompts is missing"),
        (["--prompts", wrong, "--target_rate", "8"], "error: --target_rate 8.0 is outside 0..1"),
        (["--prompts", wrong, "--score", "kl"], "error: --score 'kl' is not known; did you mean 'rkl'?"),
        (["--prompts", wrong, "--kappa_rule", "tail"], "error: --kappa_rule 'tail' is not known"),
        (["--prompts", wrong, "--plot", "x.svg"], "error: --plot goes with --compare"),
        (["--prompts", PROBLEMS, "--field", "problem"], "200 of 200 prompts are problems of a test set"),
        (["--prompts", wrong, "--top_p", "2"], "error: top_p=2.0 is outside (0, 1]"),
        (["--prompts", wrong, "--num_prompts", "0"], "error: --num_prompts 0 is not at least 1"),
    ):
        call = ["calibrate", *map(str, arguments), "--out", str(out)]
        if arguments[1:] in ([empty], [wrong]):  # as a process: the hook that makes one line of an error
            done = run([*TAKEOVER, *call])
            status, last = done.returncode, done.stderr.strip().splitlines()[-1]
            assert "Traceback" not in done.stderr
        else:
            with pytest.raises((TakeoverError, SystemExit)) as caught:
                main(call)
            exited = isinstance(caught.value, SystemExit)
            status = caught.value.code if exited else 2
            last = capsys.readouterr().err.strip() if exited else f"error: {caught.value}"
        assert status == 2
        assert text in last
        assert "\n" not in last
        assert not out.exists()


def calibration(out, *options, **popen):
    """`calibrate` on prompts of the demo pair, started; a group of 5 prompts at a time."""
    call = [*TAKEOVER, "calibrate", "--prompts", CALIBRATION_PROMPTS, "--batch_size", "5", "--out", out, *options]
    return subprocess.Popen(
        call, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT,
        # A runner that was itself started in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **popen,
    )  # fmt: skip


def wait_for(process, condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_calibrate_and_keeps_what_is_finished(tmp_path, number, status):
    process = calibration(tmp_path / "out.json")
    wait_for(process, lambda: list(tmp_path.glob(".out.json.*.partial/*.npz")))
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors.strip().endswith("stopped; what was finished is kept, and the same command goes on from there")
    assert not list(tmp_path.glob("*.json"))


def test_a_signal_before_anything_is_finished_leaves_nothing(tmp_path):
    process = calibration(tmp_path / "out.json", "--batch_size", "500")
    seen = ""
    while "Calibrating" not in seen:
        seen += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith("stopped; nothing was written")
    assert not list(tmp_path.iterdir())


def test_a_killed_calibration_goes_on_and_ends_with_the_same_file(tmp_path):
    """Killed while it measures, and again while it solves for a rate, with a part damaged in between."""
    options = ["--num_prompts", "30", "--num_held_out", "20", "--target_rate", "0.05", "--max_gen_toks", "100"]
    whole, killed = tmp_path / "whole" / "out.json", tmp_path / "killed" / "out.json"
    process = calibration(whole, *options)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "|5.0%|ce|threshold_to_mean|10|" in printed
    assert "tokens/s, rolled out and scored; peak memory" in printed

    killed.parent.mkdir()
    process = calibration(killed, *options)
    wait_for(process, lambda: len(list(killed.parent.glob(".out.json.*.partial/*.npz"))) >= 2)
    process.kill()
    process.communicate()
    parts = sorted(killed.parent.glob(".out.json.*.partial/*.npz"))
    parts[0].write_bytes(parts[0].read_bytes()[:1000])
    process = calibration(killed, *options)
    wait_for(process, lambda: list(killed.parent.glob(".out.json.*.partial/results.json")))
    process.kill()
    _, errors = process.communicate()
    assert "is damaged; its prompts are done again" in errors
    assert not killed.exists()
    process = calibration(killed, *options)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "30 rollouts of an earlier call used again" in printed
    assert killed.read_bytes() == whole.read_bytes()
    assert killed.with_suffix(".md").read_bytes() == whole.with_suffix(".md").read_bytes()
    assert sorted(path.name for path in killed.parent.iterdir()) == ["out.json", "out.md"]


def test_the_same_model_twice_is_calibrated_with_a_warning(tmp_path):
    out = tmp_path / "same.json"
    pair = ["--base", DEMO["base"], "--guide", DEMO["base"]]
    process = calibration(out, *pair, "--num_prompts", "10", "--batch_size", "10", "--license", "CC0")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "base and guide are the same model: every ce equals the entropy" in errors
    assert "all rkl scores are 0: its gate fires on whatever is not 0" in errors
    made = read_calibration(out)
    assert made.score("ce").threshold(0.05).tau == pytest.approx(made.score("entropy").threshold(0.05).tau, rel=1e-5)
    assert made.score("rkl").mean == 0
    assert made.score("js").mean < 1e-6
    assert "Licence of the prompts: CC0" in out.with_suffix(".md").read_text()


def test_a_rate_that_cannot_be_had_is_said_and_the_file_is_written(tmp_path):
    out = tmp_path / "out.json"
    options = ["--num_prompts", "10", "--num_held_out", "5", "--max_gen_toks", "60", "--target_rate", "0.05", "0.99"]
    process = calibration(out, *options)
    _, errors = process.communicate()
    assert process.returncode == 2
    last = errors.strip().splitlines()[-1]
    assert last.startswith(
        "error: --target_rate: no spike ratio realizes 99.0% ± 0.5% with score=ce on the 5 held-out prompts"
    )
    assert last.endswith("(the file is written without it; the rollouts are kept for another try)")
    assert [target.target_rate for target in read_calibration(out).targets] == [0.05]
    process = calibration(out, *options[:-1], "--target-rate", "0.02")
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "10 rollouts of an earlier call used again" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.md"]


def test_a_second_process_on_one_calibration_is_sent_away(tmp_path):
    out = tmp_path / "out.json"
    first = calibration(out)
    wait_for(first, lambda: list(tmp_path.glob(".out.json.*.partial/*.npz")))
    second = calibration(out)
    _, errors = second.communicate()
    first.kill()
    first.communicate()
    assert second.returncode == 2
    assert "error: another process measures this calibration" in errors.strip().splitlines()[-1]
    third = calibration(out)  # the lock of a dead process is nobody's
    wait_for(third, lambda: len(list(tmp_path.glob(".out.json.*.partial/*.npz"))) > 2)
    third.kill()
    third.communicate()


def test_compare_prints_the_table_and_plots(tmp_path):
    plot = tmp_path / "scores.svg"
    done = run([*TAKEOVER, "calibrate", "--compare", "demo", "qwen3-0.6b-base+qwen3-8b", "--plot", plot])
    assert done.returncode == 0, done.stderr
    assert "|demo|" in done.stdout
    assert "|AIME24|3.181 / 27.816|0.772 / 6.751|0.187 / 1.635|8.743 to 8.745|yes|" in done.stdout
    assert plot.read_text().startswith("<?xml")
    done = run([*TAKEOVER, "calibrate", "--compare", "demmo"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean 'demo'?" in done.stderr
