"""Known ways in which scorers of mathematical answers fail, each by its name; time-outs are in test_judging.py."""

from lm_eval_takeover.answers.verification import verify
from lm_eval_takeover.tasks.metrics import score_samples


def outcome(gold, response):
    return score_samples(gold, [response] * 8).outcomes[0]


def correct(gold, response):
    return outcome(gold, response) == "correct"


def test_arguments_swapped():
    """The gold comes first: math_verify unwraps an equation of the one side and not of the other."""
    assert verify("5", "x=5").correct
    assert verify("x=5", "5").correct
    assert not verify("2x+3=13", "13").correct
    assert not verify("13", "2x+3=13").correct
    assert verify("13", "10+3=13").correct
    assert verify("[2,5)", r"2 \le x < 5").correct
    assert verify(r"2 \le x < 5", "[2,5)").correct


def test_tiny_numbers_are_not_all_equal():
    assert not verify("1e-10", "2e-10").correct
    assert not verify(r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}").correct
    assert not verify(r"10^{-20}\sqrt{2}", r"10^{-20}\sqrt{3}").correct
    assert verify(r"10^{-20}\sqrt{8}", r"2\cdot 10^{-20}\sqrt{2}").correct


def test_equations_outside_latex():
    assert not verify("3x-y+13=0", "3x+4y+14=0").correct
    assert correct("3x-y+13=0", "The answer is y = 3x + 13.")
    assert correct("x=5", "Answer: x = 5")


def test_domains_and_intervals_against_inequalities():
    assert correct("[0,1]", r"\boxed{0 \le x \le 1}")
    assert not correct("[0,1]", r"\boxed{0 < x \le 1}")
    assert correct(r"x \in [-2,7]", r"\boxed{-2 \leq x \leq 7}")
    assert correct(r"(-\infty,2)\cup(2,\infty)", r"\boxed{x \neq 2}")


def test_percent():
    for answer in (r"28\%", "28%", "28", "0.28", "28 percent", r"\frac{7}{25}"):
        assert correct(r"28\%", rf"\boxed{{{answer}}}")
    for answer in ("2.8", "0.28%", "280"):
        assert not correct(r"28\%", rf"\boxed{{{answer}}}")


def test_leading_zeros():
    assert correct("33", r"\boxed{033}")
    assert correct("033", r"\boxed{33}")
    assert not correct("33", r"\boxed{0.33}")


def test_identical_strings_marked_wrong():
    for text in (
        r"\oint_C \vec{F}",
        r"\text{see the figure}",
        "a ⊕ b",
        r"\begin{cases} x \\ y \end{cases}",
        "nan",
        r"\frac{1}{0}",
    ):
        assert verify(text, text).correct


def test_a_reply_without_a_box_is_credited_for_its_last_number_only():
    reply = "We try 3, then 5, then 42, and 17 looks promising but the bound of 100 is not reached"
    assert [correct(gold, reply) for gold in ("3", "5", "42", "17", "100")] == [False] * 4 + [True]


def test_a_box_is_not_stripped_twice():
    assert correct(r"\{1,2\}", r"\boxed{\{1,2\}}")
    assert correct("5", r"\boxed{\boxed{5}}")
    assert correct(r"\frac{1}{2}", r"\boxed{\frac{1}{2}}")


def test_an_unfinished_think_is_not_credited_for_numbers_in_it():
    assert outcome("42", "<think>Maybe the answer is 42, let me check") == "no_answer"
    assert outcome("42", "<think>So $x = 42$.") == "no_answer"
    scored = score_samples("42", [r"<think>So it is \boxed{42}"] * 8)  # what there is: a box
    assert (scored.metrics["acc"], scored.metrics["unclosed_think"]) == (1.0, 1.0)


def test_a_box_after_answer_is_not_lost():
    assert correct("7", r"ANSWER: \boxed{7}")
    assert correct("7", "ANSWER:\n$$\n\\boxed{7}\n$$")


def test_text_in_a_box():
    assert correct("E", r"\boxed{\text{E}}")
    assert correct(r"\text{(E)}", r"\boxed{\text{E}}")
    assert not correct("E", r"\boxed{\text{D}}")


def test_plain_functions_are_not_products_of_letters():
    assert correct(r"\sin x", r"\boxed{sin x}")
    assert correct(r"\sin x", r"\boxed{sin(x)}")
    assert not correct(r"\sin x", r"\boxed{s i n x}")
    assert not correct(r"\sin x", r"\boxed{nisx}")


def test_degrees_against_radians():
    assert correct(r"60^\circ", r"\boxed{\frac{\pi}{3}}")
    assert correct(r"\frac{\pi}{3}", r"\boxed{60^\circ}")
    assert not correct(r"\frac{\pi}{3}", r"\boxed{60}")
    assert not correct(r"60^\circ", r"\boxed{\frac{\pi}{6}}")


def test_dollar_signs():
    assert correct("18", r"\boxed{\$18}")
    assert correct(r"\$18.90", r"\boxed{18.90}")
    assert correct("18", "The answer is $18.")
    assert correct("18", "The answer is \\$18.")
    assert correct("18", "The answer is $18$.")


def test_text_answers():
    assert correct(r"\text{Evelyn}", r"\boxed{Evelyn}")
    assert correct(r"\text{east}", "The answer is East.")
    assert not correct(r"\text{Evelyn}", r"\boxed{Navin}")


def test_units_are_not_variables():
    """math_verify takes a last letter m, g, h, s, t, c or d for a unit and drops it."""
    assert not correct("6m", r"\boxed{6}")
    assert not correct("6", r"\boxed{6m}")
    assert correct("6", r"\boxed{6\text{ m}}")
