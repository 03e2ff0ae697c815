"""Worker processes: hostile answers, time and memory limits, workers that die, and nothing left behind."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.samples import Question

GOLD = r"3\sqrt{13}"
HOSTILE = {
    "tower of powers": "9^{9^{9^9}}",
    "factorial": "10000!",
    "integral": r"\int_0^1 e^{x^{x^x}} dx",
    "nested fractions": r"\frac{1}{" * 5000 + "2" + "}" * 5000,
    "one bracket": "(" * 200_000,
    "unbalanced": r"\frac{1}{2",
    "NUL": "\x00 5",
    "lone surrogate": "\ud800 5",
    "digits": "9" * 3_000_000,
    "signs": "-" * 1500 + "1",
    "nested parentheses": "(" * 19 + "1" + ")" * 19,
    "undefined": r"\frac{0}{0} + \infty - \infty",
    "matrix power": r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}^{10^{10}}",
}
RESPONSES = ("nested fractions", "one bracket", "NUL", "lone surrogate", "digits", "signs")


def children():
    """Ids of the live and dead worker processes of this process."""
    mine, ours = psutil.Process().children(), "lm_eval_takeover.answers.judging"
    return [one.pid for one in mine if one.status() == psutil.STATUS_ZOMBIE or ours in one.cmdline()]


def test_hostile_answers_and_responses_are_incorrect_with_the_same_verdict_and_leave_nothing_behind():
    signal.alarm(3600)  # a caller's own, which time limits leave alone
    with Judge(2, time_limit=1.0) as judge:  # far from what any of them takes: under 0.6 s, or over 8 s

        def ask(names):
            return dict(zip(names, judge.map(lambda name: judge(GOLD, HOSTILE[name]), names), strict=True))

        outcomes = ask(list(HOSTILE))
        in_time = [name for name, outcome in outcomes.items() if outcome != "timed_out"]
        assert ask(in_time[::-3]).items() <= outcomes.items()
        texts = [form.format(HOSTILE[name]) for name in RESPONSES for form in (r"\boxed{{{}}}", "{}")]
        texts += ["<think>" * 100_000, r"\boxed{" * 100_000, "$1" * 1_000_000, r"\boxed{\sqrt{117}}"]
        judged = judge.judge_samples(Question(GOLD, texts, [False] * len(texts)))
    assert "correct" not in outcomes.values()
    assert [sample.outcome for sample in judged.samples].index("correct") == len(texts) - 1
    assert outcomes["tower of powers"] == "timed_out"
    broken = ("nested fractions", "nested parentheses", "signs", "one bracket", "unbalanced", "digits", "NUL")
    assert {outcomes[name] for name in broken} == {"unparsed"}
    assert children() == [] and signal.alarm(0) > 0


def test_the_clock_is_processor_time_and_a_worker_that_is_stopped_or_killed_is_replaced():
    with Judge(1, time_limit=0.7) as judge:
        judge(GOLD, "x")
        (worker,) = children()
        os.kill(worker, signal.SIGSTOP)
        timer = threading.Timer(1.0, os.kill, (worker, signal.SIGCONT))
        timer.start()  # waiting counts for nothing
        assert judge(GOLD, r"\sqrt{117}") == "correct"
        timer.join()
        os.kill(worker, signal.SIGSTOP)
        assert judge(GOLD, r"\sqrt{119}") == "timed_out"

        def verdict(answer):
            if next(asked) == 2:
                os.kill(*children(), signal.SIGKILL)
            return judge(GOLD, answer)

        asked = itertools.count()
        assert set(judge.map(verdict, [rf"\sqrt{{{117 * n * n}}} / {n}" for n in range(1, 7)])) == {"correct"}
    assert children() == []


def test_what_kills_a_worker_is_the_outcome_of_one_response(monkeypatch, caplog, tmp_path):
    """Extraction that hangs, raises, or takes the process with it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os; from lm_eval_takeover.answers import samples; plain = samples.read_answer\n"
        "class Timeout(BaseException): pass\n"
        "def read(text, truncated, problem):\n"
        "    if text == 'die': os._exit(7)\n"
        "    if text == 'raise': raise Timeout\n"
        "    while text == 'hang': pass\n"
        "    if text == 'memory': 'x' * 10**10\n"
        "    return plain(text, truncated, problem)\n"
        "samples.read_answer = read"
    )
    monkeypatch.syspath_prepend(tmp_path)
    texts = ["die", r"\boxed{5}", "raise", "hang", "memory", r"\boxed{5.0}"]
    with Judge(1, time_limit=0.5) as judge:
        judged = judge.judge_samples(Question("5", texts, [False] * len(texts)))
    outcomes = ["unparsed", "correct", "unparsed", "timed_out", "unparsed", "correct"]
    assert [sample.outcome for sample in judged.samples] == outcomes
    assert judged.majority == 1
    told = [record.getMessage().partition(" while")[0] for record in caplog.records]
    assert told == ["exit status 7", "Timeout", "MemoryError"]


def test_limits_and_letters_reach_a_worker_which_loads_no_mathematics_for_numbers_and_equal_text():
    with Judge(1) as judge:
        judged = judge.judge_samples(Question("7", ["It is 7", "It is 7"], [False, True]))
        letters = judge.judge_samples(Question("B", ["The answer is B", "A"], [False, False], "letters"))
        assert judge("5", "5.0") == "correct"
        assert judge(GOLD, GOLD) == "correct"
        assert judge("1/2", "0.3") != "correct"
        (worker,) = children()
        with open(f"/proc/{worker}/maps") as maps:
            assert "gmpy" not in maps.read()
    assert [sample.outcome for sample in judged.samples] == ["correct", "no_answer"]
    assert [sample.outcome for sample in letters.samples] == ["correct", "incorrect"]


def test_an_interrupt_ends_the_workers_and_a_closed_standard_error_ends_nothing():
    code = (
        "from lm_eval_takeover.answers.judging import Judge\n"
        "with Judge(1, time_limit=60) as judge:\n"
        "    print(judge('3', '3.0'), flush=True); list(judge.map(lambda a: judge(r'3\\sqrt{13}', a), ['9^{9^{9^9}}'] * 2))"
    )

    def prepare():
        os.close(2)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=prepare) as process:
        assert process.stdout.readline() == "correct\n"
        time.sleep(1.0)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == -signal.SIGINT  # as Python ends by an interrupt that nobody catches
    left = subprocess.run(["ps", "-o", "args=", "-s", str(process.pid)], capture_output=True, text=True).stdout
    assert "lm_eval_takeover.answers.judging" not in left


def test_math_verify_alone_judges_in_the_same_workers():
    texts = [r"So \boxed{\sqrt{117}}", "It is 5", "nothing", r"$3\sqrt{13}$"]
    with Judge(1, time_limit=0.7) as judge:
        judged = judge.judge_samples(Question(GOLD, texts, [False] * 4, verifier="math_verify"))
        hostile = judge.judge_samples(Question(GOLD, ["The answer is 9**9**9**9"], [False], verifier="math_verify"))
    assert [sample.outcome for sample in judged.samples] == ["correct", "incorrect", "no_answer", "correct"]
    assert judged.majority in (0, 3) and hostile.samples[0].outcome != "correct"


def test_code_in_a_worker_sees_no_secret_and_opens_no_file_process_or_socket(monkeypatch, tmp_path, caplog):
    """What `eval` of a response could try, as far as Python code can be stopped."""
    (tmp_path / "secret").write_text("x")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONSTARTUP", "secret")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, socket, subprocess; from lm_eval_takeover.answers import verification\n"
        f"there = {str(tmp_path)!r}\n"
        "tries = {'read': lambda: open(there + '/secret'), 'write': lambda: open(there + '/new', 'w'),\n"
        "  'socket': lambda: socket.socket(), 'process': lambda: subprocess.run(['true']), 'shell': lambda: os.system('true'),\n"
        "  'secret': lambda: os.environ['HF_TOKEN'], 'cwd': lambda: {'/': {}}[os.getcwd()]['none']}\n"
        "verification.read_stock = lambda text: str(tries[text]())\n"
        "verification.verify_stock = lambda gold, text: 'correct'"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    names = ["read", "write", "socket", "process", "shell", "secret", "cwd"]
    with Judge(1) as judge:
        judged = judge.judge_samples(Question("5", names, [False] * len(names), verifier="math_verify"))
    assert [sample.outcome for sample in judged.samples] == ["unparsed"] * len(names)
    raised = [record.getMessage().partition(" while")[0] for record in caplog.records]
    assert raised == ["PermissionError"] * 5 + ["KeyError"] * 2
    assert not (tmp_path / "new").exists()
