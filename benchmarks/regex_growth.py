"""Does any regular expression that sees a response take more than linear time?

    python benchmarks/regex_growth.py [--longest 100000] [--lines FILE]

Times every compiled pattern of `lm_eval_takeover.answers` by `search` and `finditer`, and the reading of a whole response, on
hostile texts of 1,000, 10,000 and 100,000 characters. Patterns of the comparison see at most `MAX_LENGTH` characters, and are
timed up to there. Prints the slowest. Then reads every line of GSM8K's training set (`--lines`, a parquet file), whole and cut
after its last `=`, and prints the slowest line. Exits with 1 if a pattern or a line takes more than its limit, or a line raises.
"""

import argparse
import importlib
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from lm_eval_takeover import answers
from lm_eval_takeover.answers.letters import read_letter
from lm_eval_takeover.answers.normalisation import MAX_LENGTH
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.answers.response import TAIL

# Modules whose patterns see a whole response, and its last 2 TAIL characters; the others see one answer.
RESPONSES, TAILS = {"prompts", "response", "boxes"}, {"reading", "sentences", "letters"}
# Patterns that see no more characters than these, and patterns that are tried at one place alone, by `match`.
SEEN = {"boxes._BETWEEN": 60, "response._BEFORE_RESTATED": 300}
ANCHORED = {"letters._SECOND", "letters._DENIED_BEHIND", "reading._REFUSED", "reading._DIRECT"}
LIMIT = 1.0  # seconds for one pattern on one text; a tail or an answer is far shorter
LINE_LIMIT = 0.05  # seconds for the reading of one line
TRAINING = Path(__file__).parents[2] / "shared/hub/datasets/openai/gsm8k/main/train-00000-of-00001.parquet"
UNITS = (
    *(
        "\\boxed{",
        "{",
        "$",
        "\\(",
        "answer is ",
        "####",
        "\\boxed{1}\n* ",
        " ",
        "\n",
        "*",
        "(",
        "((1,",
        "1,111,",
        "- 1",
        "1/",
    ),
    *("= 1", "a", "A ", "\\text{a", "\\begin{align}", "\\frac", "[asy]", "one ", "\nQ:", "<think>", "mol", "𝟙"),
)
NAMED = {
    "revenue": "Revenue: 120 premium subscriptions x 15 dollars per month + 80 standard subscriptions x 9 dollars per month "
    "= total monthly revenue",
    "mol": "There are (602214076000000000000000mol) in all.",
    "display": "\\[" + "\n" * 3000 + "\\]",
    "calculation": "3 + 4 = 7 + 5 = 12 = = ",
}


def list_patterns() -> dict[str, tuple[re.Pattern[str], int]]:
    """Every module-level pattern of the folder, and the most characters that it sees."""
    found = {}
    for info in pkgutil.iter_modules(answers.__path__):
        module = importlib.import_module(f"{answers.__name__}.{info.name}")
        most = sys.maxsize if info.name in RESPONSES else 2 * TAIL if info.name in TAILS else MAX_LENGTH
        for name, value in vars(module).items():
            listed = value if isinstance(value, list) else [value]
            for number, entry in enumerate(listed):
                pattern = entry[0] if isinstance(entry, tuple) and entry else entry
                if isinstance(pattern, re.Pattern):
                    label = f"{info.name}.{name}" + (f"[{number}]" if isinstance(value, list) else "")
                    found[label] = (pattern, SEEN.get(label, most))
    return found


def apply(pattern: re.Pattern[str], text: str) -> None:
    pattern.fullmatch(text)
    for _ in pattern.finditer(text):
        pass


def seconds(call: Callable[[str], object], text: str) -> float:
    """Processor time of a call, ended at twice the limit."""
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 2 * LIMIT)
    try:
        call(text)
    except TimeoutError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return time.process_time() - start


def read_lines(path: Path) -> bool:
    """Whether every line, whole and cut, is read in time; prints the slowest."""
    lines = [line for answer in pq.read_table(path)["answer"].to_pylist() for line in answer.splitlines() if line]
    took = []
    for line in lines:
        for text in {line, line[: line.rfind("=") + 1]} - {""}:
            start = time.process_time()
            read_answer(text)
            took.append((time.process_time() - start, text))
    slowest, text = max(took)
    mean = sum(seconds for seconds, _ in took) / len(took)
    print(
        f"{len(lines):,} lines of GSM8K, {len(took):,} texts: no exception, {1e6 * mean:.0f} µs each, "
        f"slowest {1000 * slowest:.1f} ms on {text[:40]!r}"
    )
    return slowest <= LINE_LIMIT


def _stop(*_: object) -> None:
    raise TimeoutError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=100_000)
    parser.add_argument("--lines", type=Path, default=TRAINING)
    options = parser.parse_args()
    lengths = [length for length in (1_000, 10_000, 100_000) if length <= options.longest]
    calls: dict[str, tuple[Callable[[str], object], int]] = {
        "read_answer": (read_answer, sys.maxsize),
        "read_letter": (read_letter, sys.maxsize),
    }
    for name, (pattern, most) in list_patterns().items():
        calls[name] = (pattern.match if name in ANCHORED else partial(apply, pattern), most)
    signal.signal(signal.SIGPROF, _stop)
    rows = []
    for name, (call, most) in calls.items():
        times = []
        for length in lengths:
            size = min(length, most)
            texts = {unit: (unit * (size // len(unit) + 1))[:size] for unit in (*UNITS, *NAMED.values())}
            texts |= {f"{unit}…": f"So it is 5 {texts[unit]} 7 wrong" for unit in UNITS[::3]}
            times.append(max((seconds(call, text), unit) for unit, text in texts.items()))
            if times[-1][0] > LIMIT:  # longer ones would only take longer
                times += [times[-1]] * (len(lengths) - len(times))
                break
        rows.append((times[-1][0], name, times))
    rows.sort(reverse=True)
    print(f"|pattern|{'|'.join(f'{length:,}' for length in lengths)}|slowest on|\n|---|{'--:|' * len(lengths)}---|")
    for _, name, times in rows[:25]:
        print(f"|{name}|{'|'.join(f'{1000 * took:.1f} ms' for took, _ in times)}|{times[-1][1][:24]!r}|")
    slow = [name for took, name, _ in rows if took > LIMIT]
    print(f"{len(rows)} patterns and readers; {len(slow)} above {LIMIT:.0f} s{': ' if slow else ''}{', '.join(slow)}")
    if not options.lines.exists():
        print(f"no lines of GSM8K here: {options.lines}")
        return int(bool(slow))
    return int(bool(slow) or not read_lines(options.lines))


if __name__ == "__main__":
    sys.exit(main())
