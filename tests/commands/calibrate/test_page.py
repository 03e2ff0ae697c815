"""The page beside a calibration file: it says what the file holds, and its command is one that runs."""

from dataclasses import replace

from lm_eval_takeover.calibration import files
from lm_eval_takeover.calibration.files import find_calibration, packaged_calibrations, write_calibration
from lm_eval_takeover.commands.calibrate.page import render_page


def test_every_packaged_file_is_sound_and_has_its_page():
    assert set(packaged_calibrations()) >= {"demo", "qwen3-0.6b-base+qwen3-8b"}
    for path in packaged_calibrations().values():
        assert path.with_suffix(".md").read_text() == render_page(files.read_calibration(path))


def test_the_card_of_a_published_table_invents_no_spike_ratio():
    page = packaged_calibrations()["qwen3-0.6b-base+qwen3-8b"].with_suffix(".md").read_text()
    assert "column 1" in page
    assert "%" not in page


def test_the_command_of_the_page_is_one_that_loads(tmp_path, monkeypatch):
    """Whatever was solved, the model arguments on the page name the whole gate."""
    from lm_eval.utils import simple_parse_args_string

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.pair.loading import load_pair, load_policy

    monkeypatch.chdir(tmp_path)
    demo = find_calibration("demo")[0]
    target = demo.targets[0]
    other_gate = target.method | {"score": "js", "kappa_rule": "tail_to_mean", "window": 5}
    entropy = target.method | {"policy": "entropy", "score": "entropy"}
    for made in (
        demo,
        replace(demo, name="mine", targets=()),
        replace(demo, name="mine"),
        replace(demo, name="mine", direction="reverse"),
        replace(demo, name="mine", targets=(replace(target, method=other_gate),)),
        replace(demo, name="mine", targets=(replace(target, method=entropy),)),
    ):
        if made.name == "mine":
            write_calibration(made, tmp_path / "mine.json")
        command = next(line for line in render_page(made).splitlines() if "--model_args" in line).split()
        assert command[-2:] == ["--tasks", "takeover_demo"]
        arguments = ModelArguments.parse(simple_parse_args_string(command[command.index("--model_args") + 1]))
        policy, origin = load_policy(arguments, load_pair(arguments))
        assert origin.calibration == made.name
        if made.targets:
            method = made.targets[0].method
            assert (policy.score, policy.gate.window) == (method["score"], method["window"])
