"""Measuring a calibration against an independent slow computation; the solver of rates, which stops at the noise of prompts."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.calibrations import calibrate_values, small_calibration
from helpers.pairs import fail_before_passes

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import KAPPA_RULES, TABLE
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands.calibrate.measurement import calibrate
from lm_eval_takeover.commands.calibrate.prompts import read_prompts
from lm_eval_takeover.commands.calibrate.rollouts import MeasuredRate, Rollouts, Setup, check_target, solve
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.lab.methods import Lossy
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.pair import load_pair

TOKENS = 40

SCORES = [score.name for score in registered if score.source.digest is None]


def slow_score(name, host, donor, token):
    """By the reference in numpy; a score that it lacks, by its own function on single positions."""
    try:
        return reference.score_of(name, host, donor, token)
    except KeyError:
        return float(registered.get(name)(*map(torch.as_tensor, (host, donor, token))))


def short_setup(pair, prompts, **changes):
    usual = {"sampling": Sampling(0.6, 0.95), "max_gen_toks": TOKENS, "batch_size": 5}
    backend = TransformersBackend(ModelArguments(), pair, Disagreement())
    return Setup(backend=backend, prompts=prompts, **usual | changes)


@pytest.fixture(scope="module")
def pair():
    return load_pair(ModelArguments())


@pytest.fixture(scope="module")
def prompts():
    return read_prompts(str(CALIBRATION_PROMPTS), count=6, held_out=8)


@pytest.fixture(scope="module")
def trajectories(pair, prompts):
    """Scores of rollouts by the slow loop: by name one list per prompt."""
    found = {score: [] for score in SCORES}
    base, guide = (pair.member(role).model for role in ("base", "guide"))
    for text in prompts.texts:
        prompt, tokens, hosts = list(pair.encode(text)), [], []
        while len(tokens) < TOKENS and not {*tokens[-1:]} & (pair.base.eos_ids | pair.guide.eos_ids):
            hosts.extend(reference.all_logits(base, prompt + tokens, (0,), pair.vocabulary.size))
            tokens.append(reference.draw(hosts[-1], reference.word(0, prompt, 0, len(tokens)), 0.6, 0.95, 0))
        donors = reference.all_logits(guide, prompt, tokens, pair.vocabulary.size)
        for score in SCORES:
            found[score].append([slow_score(score, *one) for one in zip(hosts, donors, tokens, strict=True)])
    return found


@pytest.fixture(scope="module")
def made(pair, prompts):
    return calibrate(short_setup(pair, prompts))


@pytest.mark.parametrize("score", SCORES)
def test_tau_and_kappa_equal_numpy_on_all_scores_and_shares_the_rule_in_a_loop(made, trajectories, score):
    values = np.array([one for row in trajectories[score] for one in row])
    assert made.tokens == len(values)
    assert made.cut == sum(len(row) == TOKENS for row in trajectories[score])
    assert made.scores[score].rank_error == 0
    assert made.scores[score].mean == pytest.approx(values.mean(), rel=1e-5, abs=1e-7)
    for rho in (0.005, 0.01, 0.03, 0.05, 0.1):
        threshold, tau = made.scores[score].threshold(rho), np.quantile(values, 1 - rho)
        noise = 4e-6  # nats: two steps of float32 between logits of 16 and 32, what it leaves of scores near 0
        assert threshold["tau"] == pytest.approx(tau, rel=5e-4, abs=noise)
        if registered.get(score).signed:  # no window test
            assert (threshold["kappa_threshold_to_mean"], threshold["kappa_tail_to_mean"]) == (0, 0)
            continue
        mean = values.mean()
        assert threshold["kappa_threshold_to_mean"] == pytest.approx(tau / mean, rel=5e-4, abs=noise / mean)
        tail = values[values > tau].mean() if (values > tau).any() else tau
        assert threshold["kappa_tail_to_mean"] == pytest.approx(tail / mean, rel=1e-3)
    for row, rule in itertools.product(made.scores[score].table, KAPPA_RULES):
        each = (reference.fires_along(one, row["tau"], row[f"kappa_{rule}"], 10) for one in trajectories[score])
        fired = sum(map(sum, each))
        # A score within float noise of the threshold may stand on either side of it.
        assert abs(row[f"share_{rule}"] - fired / made.tokens) <= 2 / made.tokens


def test_other_batches_change_nothing_but_noise_also_where_memory_runs_out(pair, prompts, made, monkeypatch, caplog):
    fail_before_passes(monkeypatch, torch.OutOfMemoryError, lambda role, ids, reads_prompt: len(ids) > 3)
    other = calibrate(short_setup(pair, prompts, batch_size=16))
    assert (other.tokens, other.rollouts) == (made.tokens, made.rollouts)
    assert "out of memory; continuing with batch size 3" in caplog.text
    for score in SCORES:
        assert other.scores[score].mean == pytest.approx(made.scores[score].mean, rel=1e-4)
        assert other.scores[score].sketch["tau"] == pytest.approx(made.scores[score].sketch["tau"], rel=1e-3, abs=1e-6)


def test_a_solved_rate_is_what_the_rollouts_realize(pair, prompts):
    wanted = [(Method(Disagreement()), (0.05, 0.9)), (Method(Lossy()), (0.2,))]
    made = calibrate(short_setup(pair, prompts, batch_size=16), wanted)
    target, out_of_reach, lossy = made.targets
    assert abs(target.realized_rate - 0.05) <= 0.005
    assert target.prompts == 4  # the other half solved it
    assert not out_of_reach.is_reached
    assert (lossy.method, lossy.budget_parameter) == ({"policy": "lossy"}, "leniency") and lossy.is_reached
    more = [(Method(Disagreement()), (0.05, 0.1))]
    extended = calibrate(short_setup(pair, prompts, batch_size=16), more, known=made)
    assert extended.targets[:3] == made.targets and extended.targets[3].target_rate == 0.1
    assert extended.scores == made.scores


def test_an_infinite_score_names_the_prompt(pair, prompts):
    """A donor that rules out whatever the host may write, as float16 can."""

    def rule_out(model, given, output):
        output.logits[..., 100:] = -torch.inf

    told = r"calibration prompt \d+: ce is inf.*load both models with --dtype float32"
    with pair.guide.model.register_forward_hook(rule_out), pytest.raises(CalibrationError, match=told):
        calibrate(short_setup(pair, prompts, max_gen_toks=5))


class HeldOut:
    """40 prompts whose rate of takeovers is a function of the parameter. With a seed it is drawn: 50 tokens a prompt, prompts
    that lean to more or fewer takeovers, and a quarter of the tokens that change with the parameter."""

    name, requests = "held out", range(40)

    def __init__(self, rate, seed=None, policy=None):
        self.rate, self.seed, self.method, self.asked = rate, seed, Method(policy or Disagreement()), []
        held = calibrate_values(np.random.default_rng(0).random(1000))
        held = held.with_shares({(rho, rule): rho for rho in TABLE for rule in KAPPA_RULES})
        self.calibration = replace(small_calibration(), scores={"ce": held})

    def measure(self, value, label):
        self.asked.append(value)
        if self.seed is None:
            return MeasuredRate(round(self.rate(value) * 10**6), 10**6, 0.0)
        common, own = np.random.default_rng(self.seed), np.random.default_rng([self.seed, int(value * 1e9)])
        leaning, lengths = common.gamma(4, 0.25, 40), common.poisson(50, 40)
        chance, changed, other = common.random((40, 100)), common.random((40, 100)) < 0.25, own.random((40, 100))
        fires = np.where(changed, other, chance) < (self.rate(value) * leaning)[:, None]
        taken = (fires & (np.arange(100) < lengths[:, None])).sum(-1)
        return MeasuredRate.of(list(zip(taken.tolist(), lengths.tolist(), strict=True)))


@pytest.mark.parametrize(
    "rate",
    [
        lambda rho: rho,
        lambda rho: rho / 3,
        lambda rho: 3 * rho / (1 + 2 * rho),
        lambda rho: 0.2 * rho + (0.03 if rho > 0.07 else 0.0),
        lambda rho: min(rho, 0.12),
    ],
)
@pytest.mark.parametrize("wanted", [0.01, 0.02, 0.05, 0.08, 0.1])
def test_the_solver_finds_the_nearest_rate_in_few_measurements(tmp_path, rate, wanted):
    gated, again = HeldOut(rate), HeldOut(rate)
    (target,) = solve(gated, [wanted], Rollouts([], tmp_path))
    grid = np.exp(np.linspace(np.log(0.001), np.log(0.5), 20_000))
    best = min(abs(rate(rho) - wanted) for rho in grid)
    assert abs(target.realized_rate - wanted) <= best + 0.0012
    assert len(gated.asked) <= 12
    assert list(solve(again, [wanted], Rollouts([], tmp_path))) == [target] and not again.asked  # remembered


def test_a_rate_below_all_that_a_budget_parameter_can_reach_takes_few_measurements():
    """As of `lossy` where the donor all but rules out many of the host's tokens: no leniency lets these pass."""
    lossy = HeldOut(lambda leniency: 0.015 + 0.2 / (1 + leniency) ** 2, policy=Lossy())
    (target,) = solve(lossy, [0.005], Rollouts([]))
    assert target.realized_rate == pytest.approx(0.015, abs=1e-6) and not target.is_reached
    assert len(lossy.asked) <= 8


def test_a_rate_is_measured_on_other_prompts_than_it_was_solved_on_and_the_interval_holds_the_true_one():
    held = []
    for seed in range(60):
        (target,) = solve(HeldOut(lambda rho: rho, 2 * seed), [0.05], Rollouts([]))
        others = HeldOut(lambda rho: rho, 2 * seed + 1)
        found = check_target(target, others, Rollouts([]))
        assert (found.solved_rate, others.asked, found.prompts) == (target.realized_rate, [target.value], 40)
        held.append(found.low <= target.value <= found.high)  # each rho is its own rate
    assert np.mean(held) >= 0.85
    assert MeasuredRate(1, 100, 0.0, 1.0).find_reach() == 1  # one prompt says nothing


def test_a_text_that_holds_above_a_tenth_of_the_tokens_is_named(caplog):
    (target,) = solve(HeldOut(lambda rho: rho), [0.05], Rollouts([]))
    others = HeldOut(lambda rho: rho)
    for tokens, told in ((100, False), (4000, True)):
        others.measure = lambda value, label, last=tokens: MeasuredRate.of([(5, 100)] * 39 + [(5, last)])
        check_target(target, others, Rollouts([]))
        assert ("one text holds 51% of the tokens" in caplog.text) == told


def test_the_interval_of_a_rate_holds_the_true_one_where_few_rollouts_have_most_tokens():
    """With Student's t over all prompts it covers 74 % at 5 prompts."""
    generator, held = np.random.default_rng(1), []
    for _ in range(2000):
        tokens = np.ceil(np.exp(generator.normal(5, 1.5, 5))).astype(int)
        found = MeasuredRate.of(
            [*zip(generator.binomial(tokens, generator.beta(2, 38, 5)).tolist(), tokens.tolist(), strict=True)]
        )
        held.append(abs(found.rate - 0.05) <= found.find_reach())
    assert np.mean(held) >= 0.9
    assert MeasuredRate.of([(1, 100), (2, 100), (5, 100)]).effective == pytest.approx(3)
    assert MeasuredRate.of([(0, 16)] * 4).find_reach() == 0.75  # the rule of three
