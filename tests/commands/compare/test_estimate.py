"""What `--dry_run` prints, and what `--probe` measures."""

import pytest
from helpers.stock import value_of

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import DEMO

WORDS = ["compare", "--tasks", "takeover_demo", "--target_rate", "0.05", "--dry_run", "--format", "md", "--limit", "25"]


def test_a_dry_run_prints_the_work_the_memory_and_all_commands(tmp_path, capsys):
    assert main([*WORDS, "--run_dir", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "| takeover_demo | 25 | 8 | 200 | 64,000 |" in printed
    assert "| guide | 1.6 M |" in printed
    assert printed.count("lm_eval --model guided-takeover") == 4
    assert not (tmp_path / "new").exists() and "calibration" not in printed
    words = [*WORDS[:4], "0.07", *WORDS[5:], "--model_args", "guide_load_in_4bit=True", "--rows", "base,guided,ce@0.01"]
    assert main([*words, "--run_dir", str(tmp_path / "new")]) == 0
    other = capsys.readouterr().out
    assert f"| calibration |  |  | {500 + 2 * 12 * 100:,} | {(500 + 2 * 12 * 100) * 320:,} |" in other
    sizes = [float(text.partition("| guide | 1.6 M | ")[2].partition(" GB")[0]) for text in (printed, other)]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("rows", ["base,guided", f"base,ce@0.07,lossy@0.03,thinking={DEMO['guide']}"])
def test_a_probe_measures_hours_and_says_why_a_row_has_none(harness, tmp_path, capsys, rows):
    assert main([*WORDS, "--run_dir", str(tmp_path), "--probe", "--rows", rows]) == 0
    printed = capsys.readouterr().out
    assert "| base | 17 | 1.07 |" in printed  # 1,000 tokens in 60 s
    measured = rows.endswith("guided")
    assert ("| guided | 17 | 1.07 |" in printed) is measured
    assert ("| ce@0.07 | 17 | 1.07 |" in printed) is not measured and "measured at tau=0.1 nats" in printed
    assert ("- lossy@0.03 is not measured: its calibration is not measured yet." in printed) is not measured
    assert ("| thinking | 1.6 M |" in printed) is not measured
    assert ("- thinking is not measured: lm-eval's hf counts no tokens." in printed) is not measured
    for call in harness.started:
        assert value_of(call, "--limit") == "1" and "max_gen_toks=256" in value_of(call, "--gen_kwargs")
        assert str(tmp_path / ".probe") in value_of(call, "--output_path")
