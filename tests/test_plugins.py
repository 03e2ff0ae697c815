"""A stranger's score and policy from end to end: engines, directions, calibrate, run_dir, log-likelihoods."""

from dataclasses import replace

import pytest
import torch
from helpers.pairs import SAMPLED

from lm_eval_takeover.calibration.files import read_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.decoding import engine
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import load_plugins, scores
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.model import GuidedTakeover

PLUGIN = """
from dataclasses import dataclass

from lm_eval_takeover import Policy, register_policy, register_score


@register_score("test_margin", needs_donor=False)
def margin(host_logits):
    first, second = host_logits.softmax(-1).topk(2).values.unbind(-1)
    return 1 - (first - second)


@register_score("test_jeffreys", needs_donor=True)
def jeffreys(host_logits, donor_logits):
    log_p, log_q = host_logits.log_softmax(-1), donor_logits.log_softmax(-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


@register_policy("test_every")
@dataclass(frozen=True, kw_only=True)
class Every(Policy):
    period: int = 10

    def takes_over(self, block):
        return block.positions % self.period == 0


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


@pytest.mark.parametrize("name", ["test_margin", "test_jeffreys", "test_every", "test_doubt", "test_mixed"])
def test_all_engines_write_the_same(plugin, demo_pair, prompts, name):
    direction = "reverse" if name == "test_mixed" else "forward"
    if name in ("test_every", "test_mixed"):
        policy = policies.get(name)(direction=direction, period=4)
    else:
        tau = {"test_margin": 0.6, "test_doubt": 0.3, "test_jeffreys": 4.0}[name]
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
    assert held.plugin("test_margin") == {"source": "stranger.py", "digest": scores.get("test_margin").source.digest}
    assert held.plugin("ce") is None
    assert "\ntest_margin " in capsys.readouterr().out
    arguments = {"calibration": str(out), "plugins": plugin, "score": "test_margin", "spike_ratio": 0.1}
    lm = GuidedTakeover(**arguments)
    assert lm.policy.gate.tau == pytest.approx(held.score("test_margin").threshold(0.1).tau)
    changed = replace(held.score("test_margin"), plugin={"source": "stranger.py", "digest": "0" * 32})
    other = tmp_path / "other.json"
    write_calibration(replace(held, scores=held.scores | {"test_margin": changed}), other)
    with pytest.raises(CalibrationError, match=r"score=test_margin of stranger\.py as it was then"):
        GuidedTakeover(**arguments | {"calibration": str(other)})


def test_a_score_of_a_reading_has_its_numbers(tmp_path):
    path = tmp_path / "reader.py"
    path.write_text(
        "from lm_eval_takeover import register_score\n"
        "@register_score('test_gap', needs_donor=True)\n"
        "def gap(reading):\n    return reading.donor.entropy - reading.host.entropy + reading.ce\n"
    )
    load_plugins(str(path))
    host, donor = torch.randn(2, 3, 5, 40, generator=torch.Generator().manual_seed(0)).unbind(0)
    ce, entropy, found = (scores.get(name) for name in ("ce", "entropy", "test_gap"))
    torch.testing.assert_close(found(host, donor), entropy(donor) - entropy(host) + ce(host, donor))
