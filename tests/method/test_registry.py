"""Scores and policies by name: the door of plug-ins, and strangers' methods from end to end."""

import re
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from helpers.pairs import SAMPLED
from helpers.plugins import EVERY, MARGIN

from lm_eval_takeover import Policy, register_policy, register_score
from lm_eval_takeover.calibration.files import read_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.decoding import engine
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import ArgumentError, CalibrationError, PluginError
from lm_eval_takeover.method import registry
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.named import find_policy
from lm_eval_takeover.method.policies import Disagreement, Gated
from lm_eval_takeover.method.policy import Block, policies
from lm_eval_takeover.method.registry import load_plugins, scores
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.model import GuidedTakeover


def write(path, text, **names):
    path.write_text(text.format(**names) if names else text)
    return str(path)


def install(folder, name, gates, points, group="scores"):
    """A package with one module and its entry points of this group, as pip leaves it."""
    package, info = folder / name, folder / f"{name}-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    write(package / "__init__.py", "")
    write(package / "gates.py", gates)
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write(info / "entry_points.txt", f"[lm_eval_takeover.{group}]\n{points}\n")
    return package


def test_a_file_and_a_module_register_and_may_be_loaded_again(tmp_path, monkeypatch):
    path = write(tmp_path / "my_gate.py", MARGIN, name="file_margin")
    write(tmp_path / "margin_module.py", MARGIN, name="module_margin")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        load_plugins(f"{path}+margin_module")
    host = torch.tensor([[[2.0, 1.0, 0.0]]])
    first, second = host.softmax(-1)[0, 0, :2]
    for name, source in (("file_margin", "my_gate.py"), ("module_margin", "margin_module.py")):
        assert scores.get(name)(host).tolist() == [[pytest.approx(float(1 - first + second))]]
        assert scores.get(name).source.name == source
        assert len(scores.get(name).source.digest) == 32
        assert not Gated(score=name).drafts  # whether the donor is asked follows from the score


def test_an_entry_point_is_loaded_when_its_name_is_asked_for(tmp_path, monkeypatch):
    points = "acme = acme_gate.gates\nlost = acme_gate.gates"
    package = install(tmp_path, "acme_gate", MARGIN.format(name="acme"), points)
    monkeypatch.syspath_prepend(tmp_path)
    assert "acme_gate.gates" not in sys.modules
    assert scores.get("acme").source.name == "acme_gate/gates.py"
    before = scores.get("acme").source.digest
    with pytest.raises(PluginError, match=r"entry point acme_gate\.gates registers no score 'lost'"):
        scores.get("lost")
    # The digest is of the whole package: a helper's change is a change.
    write(package / "helpers.py", "LEAST = 1\n")
    assert registry.Source.of(scores.get("acme").function).digest != before


def test_an_installed_package_that_cannot_be_imported_is_skipped_until_it_is_asked_for(tmp_path, monkeypatch, caplog):
    install(tmp_path, "torn_gate", "import no_such_module_of_theirs\n", "torn = torn_gate.gates")
    install(tmp_path, "acme_gate", MARGIN.format(name="acme"), "acme = acme_gate.gates")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert "acme" in scores.names() and "torn" not in scores.names()
    said = "score 'torn' (entry point torn_gate.gates) raised ModuleNotFoundError, line 1: No module named "
    assert [record.getMessage() for record in caplog.records] == [said + "'no_such_module_of_theirs'; it is skipped"]
    for asked in (scores.get, scores.__contains__, lambda name: find_policy("methods", name)):
        with pytest.raises(PluginError, match=re.escape(said)):
            asked("torn")
    assert "no such score" not in scores


def test_an_unknown_name_lists_what_is_registered_and_where_from(tmp_path):
    load_plugins(write(tmp_path / "my_gate.py", MARGIN, name="my_margin"))
    with pytest.raises(ArgumentError) as error:
        scores.get("my_margim")
    assert str(error.value) == (
        "score='my_margim' is not known; did you mean 'my_margin'? registered: "
        f"{', '.join(scores.names()[:-1])} (lm_eval_takeover); my_margin (my_gate.py)"
    )
    with pytest.raises(ArgumentError, match=r"policy='xyz' is not known; registered: disagreement, .* \(lm_eval_"):
        policies.get("xyz")


def test_a_plugin_that_is_not_there_or_cannot_be_run_names_file_and_line(tmp_path):
    with pytest.raises(PluginError, match=r"^score 'ce' of my_gate\.py is lm_eval_takeover's already"):
        load_plugins(write(tmp_path / "my_gate.py", MARGIN, name="ce"))
    with pytest.raises(ArgumentError, match="is no file"):
        load_plugins("no-such.py")
    with pytest.raises(ArgumentError, match=r"is no Python file \(NAME\.py\); expected a Python file"):
        load_plugins(write(tmp_path / "my_gate.json", MARGIN))
    with pytest.raises(ArgumentError, match="neither a file nor a module that can be imported"):
        load_plugins("no_such_module_of_mine")
    path = write(tmp_path / "broken.py", "x = 1\ny = 1 / 0\n")
    with pytest.raises(PluginError, match=r"plugins='.*broken\.py' raised ZeroDivisionError, line 2: division by zero"):
        load_plugins(path)
    with pytest.raises(PluginError, match=r"raised SyntaxError, line 1: (?!.*\(.*line)"):
        load_plugins(write(tmp_path / "torn.py", "def f(:\n"))


LOGITS = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda logits: {}["x"], r"score 'odd' \(.*test_registry\.py: odd\) raised KeyError, line \d+: 'x'"),
        (lambda logits: logits, r"score 'odd' \(.*: odd\) returned a tensor \[2, 3, 8\], not one \[2, 3\]"),
        (lambda logits: 1.0, r"score 'odd' \(.*\) returned float, not one \[2, 3\]"),
    ],
)
def test_a_score_that_fails_is_one_line_with_its_file_and_function(answer, said):
    def odd(host_logits):
        return answer(host_logits)

    register_score("odd", needs_donor=False)(odd)
    with pytest.raises(PluginError, match=said):
        scores.get("odd")(LOGITS)


def test_memory_that_ran_out_is_not_the_scores_fault_and_nan_is_refused_with_its_name():
    @register_score("large", needs_donor=False)
    def large(host_logits):
        raise torch.OutOfMemoryError("CUDA out of memory")

    @register_score("nan", needs_donor=False)
    def nan(host_logits):
        return host_logits[..., 0] * torch.nan

    with pytest.raises(torch.OutOfMemoryError):
        scores.get("large")(LOGITS)
    policy = Gated(score="nan")
    with pytest.raises(PluginError, match=r"score 'nan' \(.*test_registry\.py: nan\) returned NaN"):
        policy.refuse_nan(policy.scores(LOGITS, None))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda block: block.positions[:, 0] > 1, r"returned a tensor \[2\], not one \[2, 4\]"),
        (lambda block: block.positions, r"returned torch\.int64, not torch\.bool"),
        (lambda block: block.nothing, "raised AttributeError"),
    ],
)
def test_a_policy_that_fails_is_one_line_with_its_file_and_class(answer, said):
    @register_policy("strange")
    @dataclass(frozen=True, kw_only=True)
    class Strange(Policy):
        def takes_over(self, block):
            return answer(block)

    block = Block(torch.arange(4).expand(2, 4), torch.zeros(2, 4), torch.zeros(2, 10))
    with pytest.raises(PluginError, match=rf"policy 'strange' \(.*test_registry\.py: Strange\.takes_over\) {said}"):
        policies.get("strange")().decide(block)


PLUGIN = f"""{EVERY}{MARGIN.format(name="test_margin")}

@register_score("test_distance", needs_donor=True)
def distance(host_logits, donor_logits):
    return (host_logits.softmax(-1) - donor_logits.softmax(-1)).abs().sum(-1)


@register_score("test_doubt", needs_donor=False, needs_token=True)
def doubt(host_logits, tokens):
    return -host_logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


@register_policy("test_mixed")
@dataclass(frozen=True, kw_only=True)
class Mixed(Policy):
    period: int = 10
    reads_text = redraws = True

    def takes_over(self, block):  # after an even token, and where the host draws a multiple of the period
        before = block.positions.new_tensor([row.tokens[-1] if row.tokens else 0 for row in block.written])[:, None]
        before = before.new_tensor([[*one, *rest] for one, rest in zip(before.tolist(), block.tokens[:, :-1].tolist())])
        return (before % 2 == 0) | (block.tokens % self.period == 0)

    def mix(self, host_logits, donor_logits):
        return host_logits + donor_logits
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "stranger.py"
    path.write_text(PLUGIN)
    load_plugins(str(path))
    return str(path)


@pytest.mark.parametrize("name", ["test_margin", "test_distance", "test_every", "test_doubt", "test_mixed"])
def test_all_engines_write_the_same(plugin, demo_pair, prompts, name):
    direction = "reverse" if name == "test_mixed" else "forward"
    if name in ("test_every", "test_mixed"):
        policy = policies.get(name)(direction=direction, period=4)
    else:
        tau = {"test_margin": 0.6, "test_distance": 0.8, "test_doubt": 0.3}[name]
        policy = Disagreement(score=name, direction=direction, gate=Gate(tau, 1.0))
    requests = [Request(prompt, 0, 24, SAMPLED) for prompt in prompts]
    texts = []
    for block in (1, 7):
        made = engine.generate(demo_pair, policy, requests, batch_size=3, block_size=block, traced=True)
        texts.append({i: (g.tokens, g.taken_over) for i, g in made})
    assert texts[0] == texts[1]
    taken = [fire for _, fires in texts[0].values() for fire in fires]
    assert 0.01 < sum(taken) / len(taken) < 0.6
    if name == "test_every":
        assert all(fires == [t % 4 == 0 for t in range(len(fires))] for _, fires in texts[0].values())
    if policy.needs_token:  # what the host had drawn where it was taken over is not known any more
        return
    forced = force(demo_pair, policy, [r.prompt for r in requests], [texts[0][i][0] for i in range(len(requests))])
    assert [one.taken_over.tolist() for one in forced] == [texts[0][i][1] for i in range(len(requests))]


def test_calibrate_collects_it_beside_ours_and_a_changed_one_is_told_apart(plugin, tmp_path, capsys):
    out = tmp_path / "mine.json"
    call = ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "3", "--max_gen_toks", "40"]
    assert main([*call, "--out", str(out), "--plugins", plugin, "--score", "test_margin"]) == 0
    held = read_calibration(out)
    assert list(held.scores)[:4] == ["ce", "rkl", "entropy", "js"]
    assert held.score("test_margin").plugin == {"source": "stranger.py", "digest": scores.get("test_margin").source.digest}
    assert held.score("ce").plugin is None
    assert "\ntest_margin " in capsys.readouterr().out
    arguments = {"calibration": str(out), "plugins": plugin, "score": "test_margin", "spike_ratio": 0.1}
    lm = GuidedTakeover(**arguments)
    assert lm.policy.gate.tau == pytest.approx(held.score("test_margin").threshold(0.1)["tau"])
    changed = replace(held.score("test_margin"), plugin={"source": "stranger.py", "digest": "0" * 32})
    other = tmp_path / "other.json"
    write_calibration(replace(held, scores=held.scores | {"test_margin": changed}), other)
    with pytest.raises(CalibrationError, match=r"score=test_margin of stranger\.py as it was then"):
        GuidedTakeover(**arguments | {"calibration": str(other)})
