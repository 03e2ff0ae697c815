"""What `--dry_run` prints."""

from lm_eval_takeover.cli import main

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
