"""Where a text ends: at a stop string, but not inside of thoughts, or at its token limit."""

import pytest

from lm_eval_takeover.decoding.rows import StopStrings, is_cut_off, text_of
from lm_eval_takeover.method.request import Request


class Characters:
    """A tokenizer whose tokens are characters; 0 is an end token, which is special."""

    def decode(self, tokens, skip_special_tokens):
        return "".join(chr(token) for token in tokens if token or not skip_special_tokens)


def written(text, until):
    """What a model would write that has this text in mind: up to and with its stop string."""
    stop, tokens = StopStrings(Characters(), until), [ord(letter) for letter in text]
    end = next((n for n in range(1, len(tokens) + 1) if stop.found(tokens[:n])), len(tokens))
    for n in range(end):  # what looks ahead never misses a stop
        assert stop.may_end_in(tokens[:n], tokens[n:end]) or not stop.found(tokens[:end])
    return text_of(Characters(), tokens[:end], until)


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
    assert is_cut_off(Characters(), tokens, request, {0}) is cut
