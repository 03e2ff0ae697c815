"""The page beside a calibration file."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.calibrations import calibrate_values

from lm_eval_takeover.calibration.files import find_calibration, packaged_calibrations, read_calibration
from lm_eval_takeover.commands.calibrate.page import list_limits, peak_share, render_page


def test_every_packaged_file_is_sound_and_has_its_page():
    packaged = {name: read_calibration(path) for name, path in packaged_calibrations().items()}
    assert {name for name, held in packaged.items() if held.source == "published"} == {"qwen3-0.6b-base+qwen3-8b"}
    for name, path in packaged_calibrations().items():
        page = path.with_suffix(".md").read_text()
        if packaged[name].source == "measured":
            assert page == render_page(packaged[name])
        for cell in (cell for rows in packaged[name].columns.values() for row in rows.values() for cell in row):
            assert f"{cell['tau']:.3f} / {cell['kappa']:.3f}" in page


def test_the_page_says_which_arguments_name_the_gate():
    """Whatever was solved: they load as what was measured."""
    demo = find_calibration("demo")[0]
    target = demo.targets[0]
    other_gate = target.method | {"score": "js", "kappa_rule": "tail_to_mean", "window": 5}
    entropy = target.method | {"policy": "entropy", "score": "entropy"}
    for method, words in (
        (target.method, "with `target_rate=0.02`."),
        (other_gate, "with `target_rate=0.02`, `score=js`, `kappa_rule=tail_to_mean`, `window=5`."),
        (entropy, "with `target_rate=0.02`, `policy=entropy`."),
    ):
        page = render_page(replace(demo, targets=(replace(target, method=method),)))
        assert f"Use it as the model argument `calibration=demo` {words}" in page
    assert "`calibration=mine.json`." in render_page(replace(demo, name="mine", targets=()))


def test_a_pair_whose_disagreement_is_everywhere_is_warned_about():
    """A tenth of exponential scores holds 33 % of their sum; of the demo pair's ce it holds all."""
    demo = find_calibration("demo")[0]
    assert peak_share(demo) == pytest.approx(1, abs=0.001) and not any("spread" in line for line in list_limits(demo))
    spread = calibrate_values(np.random.default_rng(0).exponential(size=100_000))
    everywhere = replace(demo, scores={"ce": spread, "top1": spread})
    assert peak_share(everywhere) == pytest.approx(0.1 * (1 + np.log(10)), abs=0.01)
    assert any("the tenth of the tokens with the highest ce holds 33% of it" in line for line in list_limits(everywhere))
