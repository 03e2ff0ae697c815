"""Given texts read as a policy would have met them, and where texts end."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.pairs import METHODS, SAMPLED, TableTokenizer
from helpers.reference import all_logits, score_of
from scipy.special import log_softmax

from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.decoding.rows import StopStrings, is_cut_off, text_of
from lm_eval_takeover.decoding.teacher_forcing import compare, force, read_aligned
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement, Early, Gated, GuideAlone, Random
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Request, Sampling

GATES = {"ce": Gate(1.5, 3.0), "rkl": Gate(1.0, 3.0, 5)}


@pytest.fixture(scope="module")
def requests(prompts):
    return [Request(prompt, j, 50, SAMPLED) for prompt in prompts[:3] for j in range(2)]


# Policies, and how many logits are held at once: fewer have long texts read a few columns at a time.
WRITERS = [(Gated(score="ce", gate=GATES["ce"]), 2**26)]
WRITERS += [(Gated(direction="reverse", score="rkl", gate=GATES["rkl"]), 4 * 512 * 7)]
WRITERS += [(policy, 2**26) for policy in (Random(rate=0.3), Early(early_tokens=7), GuideAlone(), BaseAlone())]
WRITERS += [(METHODS[name], 2**26) for name in ("segment to the end of a sentence", "ensemble")]


@pytest.mark.parametrize(("policy", "most"), WRITERS, ids=lambda value: getattr(value, "name", None))
def test_a_text_is_met_as_its_policy_wrote_it(demo_pair, requests, policy, most):
    """Its tokens stand for the host's draws, so a mix that gives them is no takeover."""
    first = requests[::2]  # given texts have the random numbers of a prompt's first sample
    made = [g for _, g in sorted(generate(demo_pair, policy, first, batch_size=10))]
    forced = force(demo_pair, policy, [r.prompt for r in first], [g.tokens for g in made], most=most)
    for recorded, one in zip(made, forced, strict=True):
        assert one.scores.tolist() == pytest.approx(recorded.scores, rel=1e-3, abs=1e-4, nan_ok=True)
        assert one.taken_over.tolist() == [taken and not policy.mixes for taken in recorded.taken_over]
    assert any(g.takeovers for g in made) == (policy.name != "base")


def test_greedy_texts_are_greedy_and_others_are_not(demo_pair, requests):
    policy = Disagreement(gate=GATES["ce"])
    greedy = [replace(r, sampling=Sampling(), max_new_tokens=25) for r in requests[:2]]
    made = [g for _, g in sorted(generate(demo_pair, policy, greedy, batch_size=2))]
    prompts = [r.prompt for r in greedy]
    assert all(f.greedy.all() for f in force(demo_pair, policy, prompts, [g.tokens for g in made]))
    wrong = [[t + 1 for t in g.tokens] for g in made]
    assert not any(f.greedy.all() for f in force(demo_pair, policy, prompts, wrong))


@pytest.mark.parametrize("block", [2**26, 5000])
def test_both_models_along_a_text_are_those_of_full_passes(demo_pair, requests, block):
    """Every column beside plain numpy on a pass of one row each, with texts of several lengths, whole or in blocks of columns."""
    prompts = [r.prompt for r in requests[:6:2]]
    texts = [list(r.prompt[: 5 + 9 * i]) for i, r in enumerate(requests[:6:2])]
    found = compare(demo_pair, [scores.get(name) for name in ("ce", "rkl", "js")], prompts, texts, ["a", "b", "c"], most=block)
    widths = [tokens.shape[1] for tokens, _ in read_aligned(demo_pair, ("base",), prompts, texts, ["a", "b", "c"], block)]
    assert (sum(widths), max(widths)) == (len(texts[-1]), min(len(texts[-1]), block // (3 * demo_pair.vocab_size)))
    for prompt, text, columns in zip(prompts, texts, found, strict=True):
        logits = {member.role: all_logits(member.model, prompt, text, demo_pair.vocab_size) for member in demo_pair.members}
        for role, rows in logits.items():
            log = log_softmax(rows, axis=-1)
            here = log[np.arange(len(text)), text]
            np.testing.assert_allclose(columns[f"{role}_logprob"], here, atol=1e-3)
            np.testing.assert_allclose(columns[f"{role}_entropy"], -(np.exp(log) * log).sum(-1), atol=1e-3)
            np.testing.assert_array_equal(columns[f"{role}_rank"], (log > here[:, None]).sum(-1) + 1)
            np.testing.assert_array_equal(columns[f"{role}_top"], log.argmax(-1))
        for name in ("ce", "rkl", "js"):
            expected = [score_of(name, *both) for both in zip(*logits.values(), strict=True)]
            np.testing.assert_allclose(columns[name], expected, atol=1e-3)
        assert columns["ce"].dtype == np.float32 and columns["base_rank"].dtype == np.int32


CHARACTERS = TableTokenizer(["", *map(chr, range(1, 128))])  # 0 is an end token, which is no text


def written(text, until):
    """What a model would write that has this text in mind: up to and with its stop string."""
    stop, tokens = StopStrings(CHARACTERS, until), [ord(letter) for letter in text]
    end = next((n for n in range(1, len(tokens) + 1) if stop.found(tokens[:n])), len(tokens))
    for n in range(end):  # what looks ahead never misses a stop
        assert stop.may_end_in(tokens[:n], tokens[n:end]) or not stop.found(tokens[:end])
    return text_of(CHARACTERS, tokens[:end], until)


PROBLEM = ("\nProblem:",)


@pytest.mark.parametrize(
    ("text", "kept", "until"),
    [
        ("It is 5.\n\nProblem: What is 2+2?", "It is 5.\n", PROBLEM),
        ("The Problem: hard. 5", None, PROBLEM),
        ("<think>\nProblem: what?\nSo 5.</think>\n5\nProblem: next", "<think>\nProblem: what?\nSo 5.</think>\n5", PROBLEM),
        ("<think>\nProblem: what?\nSo 5.</think>5", None, PROBLEM),
        ("<think>\nProblem:</think>5\nProblem:", "<think>\nProblem:</think>5", PROBLEM),
        ("<think>a</think>b<think>\nProblem: unclosed", None, PROBLEM),
        ("<think>a</think>b", "<think>a", ("</think>",)),  # a task may name the tags of thoughts
        ("a<think>b", "a", ("<think>",)),
    ],
)
def test_stop_strings_end_answers_and_not_thoughts(text, kept, until):
    assert written(text, until) == (text if kept is None else kept)


@pytest.mark.parametrize(
    ("tokens", "cut"),
    [([65] * 4, False), ([65] * 5, True), ([65] * 4 + [0], False), ([65, 65, 65, 10, 66], False), ([10, 66, 65, 65, 65], True)],
    ids=["shorter", "limit", "end token at the limit", "stop string at the limit", "stop string inside of thoughts"],
)  # fmt: skip
def test_only_the_token_limit_cuts_a_text_off(tokens, cut):
    until = ("\nB",)
    if tokens[0] == 10:  # the same, but thinking
        tokens = [ord(letter) for letter in "<think>"] + tokens
    request = Request((1,), 0, max(len(tokens), 5), until=until)
    assert is_cut_off(CHARACTERS, tokens, request, {0}) is cut
