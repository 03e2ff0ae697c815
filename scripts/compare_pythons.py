"""Do all Pythons of this machine read and judge answers alike?

    make test-pythons
    python scripts/compare_pythons.py [PYTHON ...]

Tries every Python from 3.11 to 3.14 that is found: on the path, of pyenv and of uv. Each reads the tables of the tests, the texts
of `../shared` and the gold answers of the seven benchmarks in many forms (set HF_ENDPOINT for a mirror of the hub). What judges
answers is pure Python, so all use the packages of this environment. Prints a row for each; exits with 1 if a verdict differs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = 10
JUDGE = """
import json, logging, sys
from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.samples import Question
logging.disable(logging.WARNING)
with Judge(time_limit=60.0) as judge, open(sys.argv[1], encoding="utf-8") as rows:
    def read(row):
        text, gold, kind, tolerance, problem = row
        return judge.judge_samples(Question(gold, [text], [False], kind, tolerance, problem=problem)).samples[0]
    print(json.dumps(list(judge.map(read, map(json.loads, rows)))))
"""

Row = tuple[str, str, str, float, str]  # text, gold answer, kind, tolerance, problem


def list_rows() -> list[Row]:
    """All texts of the tests, of `../shared` and of the benchmarks' gold answers, each once."""
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]
    import reading_answers
    from helpers.tables import read_table  # type: ignore[import-not-found]

    loaders = (getattr(reading_answers, f"load_{name}") for name in ("bases", "texts", "math", "reports", "table", "golds"))
    texts = [text for load in loaders for text in load("all")]
    rows: list[Row] = [(text.text, text.gold, text.kind, text.tolerance, text.problem) for text in texts]
    for table, kind in (("extracted", "math"), ("letters", "letters")):
        rows += [(response, answer or "none", kind, 0.0, "") for response, answer in read_table(table)]
    rows += [(response, gold, "math", 0.0, problem) for gold, response, _, problem in read_table("judged_responses")]
    rows += [(text, gold, "math", 0.0, "") for gold, *pair in read_table("run_on_texts") for text in pair]
    return list(dict.fromkeys(rows))


def find_pythons() -> dict[str, str]:
    """The interpreters from 3.11 to 3.14 on this machine by their versions."""
    names = ["/usr/bin/python3", sys.executable, *(f"python3.{minor}" for minor in range(11, 15))]
    paths = [
        path for folder in (".pyenv/versions", ".local/share/uv/python") for path in Path.home().glob(f"{folder}/*/bin/python3")
    ]
    found: dict[tuple[int, ...], str] = {}
    for name in [*filter(shutil.which, names), *map(str, paths)]:
        command = [name, "-c", "import sys; print(*sys.version_info[:3], sep='.')"]
        done = subprocess.run(command, capture_output=True, text=True)
        version = (
            tuple(map(int, done.stdout.split("."))) if done.returncode == 0 else ()
        )  # pyenv's name of one that is not chosen
        if (3, 11) <= version < (3, 15):
            found.setdefault(version, name)
    return {".".join(map(str, version)): found[version] for version in sorted(found)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="only these")
    options = parser.parse_args()
    packages = next(entry for entry in sys.path if (Path(entry) / "sympy").is_dir())
    rows = list_rows()
    verdicts: dict[str, list[list[object]]] = {}
    print(f"{len(rows):,} texts\n\n|Python|correct|no answer|unlike the first|seconds|\n|---|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder, "texts.jsonl")
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        pythons = {name: name for name in options.pythons} or find_pythons()
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
        for version, python in pythons.items():
            start = time.monotonic()
            done = subprocess.run([python, "-c", JUDGE, str(texts)], stdout=subprocess.PIPE, env=environment, check=True)
            verdicts[version] = judged = json.loads(done.stdout)
            first = next(iter(verdicts.values()))
            unlike = [place for place, pair in enumerate(zip(first, judged, strict=True)) if pair[0] != pair[1]]
            outcomes = [str(outcome) for _, outcome, *_ in judged]
            counts = outcomes.count("correct"), outcomes.count("no_answer"), len(unlike)
            print(f"|{version}|" + "|".join(f"{count:,}" for count in counts) + f"|{time.monotonic() - start:.0f}|", flush=True)
            for place in unlike[:SHOWN]:
                print(f"    {rows[place][0][-80:]!r}: {first[place]} and {judged[place]}")
    return int(any(judged != next(iter(verdicts.values())) for judged in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
