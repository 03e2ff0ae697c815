"""The final answer of a response."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lm_eval_takeover.answers.extraction import extract_answer, has_unclosed_think, read_answer, strip_thinking
from lm_eval_takeover.answers.letters import extract_letter

EXTRACTED = [
    (r"so \boxed{5}.", "5"),
    (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\left\{ x \right\}} done", r"\left\{ x \right\}"),
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
    (r"\fbox{5}", "5"),
    (r"\boxed {5}", "5"),
    (r"\boxed{4} and \boxed{5", "4"),
    # boxes in boxes, empty boxes
    (r"\boxed{\boxed{5}}", "5"),
    (r"\boxed{ \fbox{ 5 } }", "5"),
    (r"\boxed{\boxed{5} + 1}", r"\boxed{5} + 1"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed{}", None),
    (r"It is \boxed{3}. Put it within \boxed{}.", "3"),
    (r"\boxed{\ldots}", None),
    # lists of boxes
    (r"\boxed{1} and \boxed{2}", "1, 2"),
    (r"$\boxed{1}$, $\boxed{2}$, and $\boxed{3}$.", "1, 2, 3"),
    (r"\boxed{x = 1} \text{ or } \boxed{x = 2}", "x = 1, x = 2"),
    (r"x = \boxed{1} and y = \boxed{2}", "1, 2"),
    (r"First \boxed{1}. Then \boxed{2} and \boxed{3}", "2, 3"),
    (r"\boxed{5}, that is \boxed{5}", "5"),
    # thoughts
    (r"<think>\boxed{1}</think> it is \boxed{2}", "2"),
    (r"\boxed{1}</think> it is \boxed{2}", "2"),
    (r"<think>\boxed{1}</think> I do not know", None),
    (r"<think> unfinished \boxed{3}", "3"),
    ("<think> maybe the answer is 3", None),
    # no box
    ("the answer is 7", "7"),
    ("The answer is 3.5 dollars. Great!", "3.5 dollars"),
    (r"The final answer is: $\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
    ("The answer is $5$ and $6$.", "5, 6"),
    ("The answer is $5$ square units.", "5"),
    (
        r"The inverse is $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$.",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    ),
    ("The answer to the second question is 12, because it must be.", "12"),
    ("**Answer:**\n\n\\[ 12 \\]", "12"),
    ("Final Answer: **42**", "42"),
    ("#### 1,234", "1,234"),
    ("Answer: 11,\\! 111", "11,\\! 111"),
    ("Hence $x=5$.", "5"),
    ("Therefore we get\n\\[ 5 \\]", "5"),
    ("So we have $3$ cm.", "3"),
    ("18 eggs", "18 eggs"),
    (r"\frac{1}{2}", r"\frac{1}{2}"),
    ("$5$", "$5$"),
    ("Evelyn", "Evelyn"),
    (r"So $n = \boxed{7}$, and the answer is $\boxed{14}$.", "14"),
    (r"The answer is not $\boxed{7}$, but $\boxed{14}$.", "14"),
    (r"$\boxed{7}$, which means that the answer is $\boxed{14}$", "14"),
    (r"$x_1 = \boxed{1}$ and $x_2 = \boxed{2}$", "1, 2"),
    ("- \\boxed{1}\n- \\boxed{2}", "1, 2"),
    ("1. \\boxed{1}\n2. \\boxed{2}", "1, 2"),
    ("$$\n\\boxed{1}\n$$\nand\n$$\n\\boxed{2}\n$$", "1, 2"),
    (r"\[\boxed{1} \quad \boxed{2}\]", "1, 2"),
    ("#### Step 4: Conclusion\nTherefore, the total is $18$.", "18"),
    ("The answer is 18. The answer is in dollars.", "18"),
    ("Answer: 18\n\nThe answer is correct because it checks.", "18"),
    ("The answer is therefore 18.", "18"),
    ("The answer should be 18.", "18"),
    ("Ans: 18", "18"),
    ("### Final Answer\n\n**18**", "18"),
    ("**Answer:** Janet makes **$18** every day", "$18"),
    (r"\boxed 5", "5"),
    ("The answer is 18 (since 9*2=18).", "18"),
    ("#### 18", "18"),
    ("Therefore, Janet makes **$18** every day at the farmers' market.", "$18"),
    ("The solutions are $x = 1$ and $x = -2$.", "1, -2"),
    ("We get $x = 1$, $y = -2$.", "-2"),
    (r"The distance is \(2\sqrt{5}\).", r"2\sqrt{5}"),
    ("The answer is $6$.\n\nThis answer is consistent with the problem's statement that $n > 5$.", "6"),
    ("**Final Answer**\n\nThe probability is \\(\\frac{1}{2}\\).", r"\frac{1}{2}"),
    (r"The solutions are $\boxed{1}$ and also $\boxed{-2}$.", "1, -2"),
    ("<think>\nso \\boxed{3}\n</think>\n\n**Final Answer**\n\\boxed{", None),
    # the end of the text
    ("We see that\n\\begin{align*}\n\\sqrt{3600} &= \\sqrt{60^2} \\\\\n&= 60.\n\\end{align*}", "60"),
    ("So the line is $3x - y = 0$.", "3x - y = 0"),
    ("The sum is $2 + 3 = 5 \\approx 5.0$.", "5"),
    ("So he pays $21 - $20 = $1 more on Monday.", "$1"),
    ("He pays $5 and she pays $10.", "$10"),
    ("It takes 10*1.2=12 minutes to speak 10 pages", "12"),
    ("She sold 12 eggs. Nice work, is it not?", "12"),
    ("So f(x) = 2x + 3.", "2x + 3"),
    ("They meet at (4, -1).", "(4, -1)"),
    ("Janet makes **$18** every day at 2 markets.", "$18"),
    ("We tried $5$.\n[asy] draw((1,2)); [/asy]", "5"),
    # nothing to read
    ("I cannot tell. Is it?", None),
    ("What is 5?", None),
    ("So our answer is correct.", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "answer"), EXTRACTED)
def test_extracted(response, answer):
    assert extract_answer(response) == answer


def test_a_text_that_was_cut_off_has_not_answered():
    for text in ("She has 5 + 3 = 8", "So it is $8$", "8"):
        assert extract_answer(text) is not None
        assert extract_answer(text, truncated=True) is None
    assert read_answer("\\boxed{8} and", truncated=True) == ("8", True)
    assert read_answer("The answer is 8. Let me", truncated=True) == ("8", False)


def test_thinking():
    assert strip_thinking("<think>a</think>b") == "b"
    assert has_unclosed_think("x <think> y")
    assert has_unclosed_think("<think>a</think> <think>b")
    assert not has_unclosed_think("<think>a</think>b")
    assert not has_unclosed_think("a</think>b")


@given(st.text())
def test_no_text_breaks_extraction(text):
    extract_answer(text)
    extract_letter(text)


@given(
    st.lists(
        st.sampled_from(["\\boxed{", "{", "}", "1", " and ", "$", "\\", "answer is ", "<think>", "\n", ". ", ","]),
        max_size=30,
    )
)
@example(["$", "\n", "$"])
def test_no_arrangement_of_its_words_breaks_extraction(parts):
    answer = extract_answer("".join(parts))
    assert answer is None or answer == answer.strip() != ""


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "{",
        "$",
        "answer is ",
        "\\(",
        "\\boxed{1}",
        "\\boxed{1},",
        "answer to ",
        "$a$,",
        " ",
        "\n",
        "####",
        "\\boxed{1} and ",
    ],
)
def test_time_is_linear_in_the_response(unit):
    def seconds(length):
        text = unit * (length // len(unit))
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            extract_answer(text)
            extract_letter(text)
            best = min(best, time.process_time() - start)
        return best

    # Eight times as long takes about eight times the time; quadratic would be 64 times.
    assert seconds(320_000) < 24 * seconds(40_000) + 0.05


def test_bullets_between_boxes_do_not_backtrack_without_end():
    assert extract_answer("\\boxed{1}" + "\n* " * 18 + "x \\boxed{2}") == "2"
    assert extract_answer("\\boxed{1}" + " ** , " * 9 + "x \\boxed{2}") == "2"


def test_many_joined_boxes_that_differ():
    assert extract_answer(", ".join(f"\\boxed{{{n}}}" for n in range(20_000))).endswith(" 19999")


def test_deep_nesting_of_boxes():
    assert extract_answer("\\boxed{" * 20_000 + "5" + "}" * 20_000) == "5"
    assert extract_answer("\\boxed{" * 200_000) is None
