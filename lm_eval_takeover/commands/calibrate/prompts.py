"""The prompts of a calibration: drawn from a file or a hub data set, never from a test set."""

import hashlib
import json
import logging
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from lm_eval_takeover import demo
from lm_eval_takeover.errors import ArgumentError

logger = logging.getLogger(__name__)

# As in task_configs/_math_template_yaml, so that a calibration meets the prompts that the benchmarks ask.
MATH_TEMPLATE = "Problem: {{%s}}\nPlease reason step by step, and put your final answer within \\boxed{}.\nSolution:"
TEST_DIGESTS = Path(__file__).parent / "test_problems.json"
_FIRST = 6  # words by which a test problem is found inside a longer prompt


@dataclass(frozen=True, slots=True)
class Prompts:
    """What the host rolls out (`texts`), what a target rate is solved on (`held_out`), and where both came from."""

    texts: tuple[str, ...]
    held_out: tuple[str, ...]
    source: dict[str, Any]


def read_prompts(
    source: str,
    *,
    split: str = "train",
    field: str | None = None,
    template: str | None = None,
    count: int = 500,
    held_out: int = 0,
    seed: int = 0,
    chat: Callable[[str], str] | None = None,
    license: str | None = None,
) -> Prompts:
    """`count` prompts, and `held_out` others, drawn with `seed` from a JSONL file or from the hub data set `id[:config]`.

    A row becomes a prompt through the Jinja `template` over its fields: by default the text of `field` in a file, and the
    prompt of the mathematical tasks around it for a data set. `chat` then puts it into a chat template. Where there are too few
    rows for both, the held-out ones are at most a fifth. Raises ArgumentError for what cannot be read or is a test problem.
    """
    path = Path(source)
    rows: Any
    if path.exists():
        rows, name, field, kept_split = _read_jsonl(path), path.name, field or "prompt", None
    else:
        rows, kept_split = _load_dataset(source, split), split
        field = field or ("prompt" if "prompt" in rows.column_names else "question")
        name, license = source, license or _read_license(source)
        template = template or MATH_TEMPLATE % field
    if not len(rows):
        raise ArgumentError(f"--prompts '{source}' holds no prompt; expected one JSON object with '{field}' per line")
    drawn = _draw_rows(source, rows, field, template, count + held_out, seed)
    order = list(drawn)
    held_out = min(held_out, max(len(order) - count, len(order) // 5))
    indices = sorted(order[: min(count, len(order) - held_out)])
    others = sorted(order[len(indices) : len(indices) + held_out])
    chosen = [*indices, *others]
    texts = [chat(drawn[index].prompt) if chat else drawn[index].prompt for index in chosen]
    checked = _refuse_test_problems(source, chosen, [drawn[index].text for index in chosen], texts)
    described = {
        "dataset": name,
        "split": kept_split,
        "field": field,
        "template": template,
        "chat_template": chat is not None,
        "license": license,
        "seed": seed,
        "indices": indices,
        "digest": f"sha256:{hashlib.sha256(json.dumps(texts[: len(indices)]).encode()).hexdigest()}",
        "held_out_indices": others,
        "checked_against": checked,
    }
    return Prompts(tuple(texts[: len(indices)]), tuple(texts[len(indices) :]), described)


@dataclass(frozen=True, slots=True)
class _Row:
    """A drawn row: the text of its field, and the prompt that the template makes of it."""

    text: str
    prompt: str


def _draw_rows(
    source: str, rows: Sequence[dict[str, Any]], field: str, template: str | None, count: int, seed: int
) -> dict[int, _Row]:
    """`count` rows by their numbers, in the order of the draw; all of them where there are fewer. No two have one prompt."""
    shuffled = list(range(len(rows)))
    random.Random(seed).shuffle(shuffled)
    drawn: dict[int, _Row] = {}
    prompts: set[str] = set()
    repeated = 0
    for index in shuffled:
        if len(drawn) == count:
            break
        row = rows[index]
        text = row.get(field)
        if not isinstance(text, str) or not text.strip():
            raise ArgumentError(
                f"--prompts '{source}': row {index + 1} has no text in field '{field}' "
                f"(its fields: {', '.join(map(str, row))}); name the field with --field"
            )
        prompt = text if template is None else _render_template(template, row)
        if prompt in prompts:  # which would have the same rollout
            repeated += 1
            continue
        prompts.add(prompt)
        drawn[index] = _Row(text, prompt)
    if repeated:
        logger.warning("%d rows of '%s' repeat the prompt of another; left out", repeated, source)
    return drawn


def _load_dataset(source: str, split: str) -> Any:
    import datasets

    name, _, config = source.partition(":")
    try:
        return datasets.load_dataset(name, config or None, split=split)
    except Exception as error:  # the hub, the network and the loader each raise their own kinds
        raise ArgumentError(
            f"--prompts '{source}' is no file, and as a hub data set 'id[:config]' it cannot be loaded: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _read_license(source: str) -> str | None:
    """The licence that the data set's card states."""
    import huggingface_hub

    try:
        card = huggingface_hub.dataset_info(source.partition(":")[0]).card_data
    except Exception:  # no card, no connection to its host: the calibration's card then says that it is not known
        return None
    stated = card.get("license") if card else None
    return ", ".join(stated) if isinstance(stated, list) else stated


def _render_template(template: str, row: dict[str, Any]) -> str:
    try:
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        # A shell passes \\n as two characters; \\neq and \\nabla are LaTeX.
        return environment.from_string(re.sub(r"\\n(?![a-z])", "\n", template)).render(**row)
    except Exception as error:  # a template computes, and so fails, as it likes
        raise ArgumentError(
            f"--template {template!r}: {_first_line(error)}; its fields are those of a row: {', '.join(map(str, row))}"
        ) from error


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--prompts '{path}' cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ArgumentError(f"--prompts '{path}': line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ArgumentError(f"--prompts '{path}': line {number} is not a JSON object")
            rows.append(row)
    return rows


# Test problems. What ships is a digest of each open one's words; GPQA's are read from the hub by whoever may.


def words(text: str) -> list[str]:
    """Normalised text: compatibility forms folded, lower case, words and numbers alone."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _digest(listed: Sequence[str], size: int) -> str:
    return hashlib.blake2b(" ".join(listed).encode(), digest_size=size).hexdigest()


def problem_digest(problem: str) -> str:
    """`words first whole`: how many words, and digests of the first six and of all of them."""
    listed = words(problem)
    return f"{len(listed)} {_digest(listed[:_FIRST], 4)} {_digest(listed, 8)}"


def _refuse_test_problems(source: str, rows: Sequence[int], raw: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The benchmarks that the prompts were compared with, none of whose problems they hold."""
    known = _TestProblems()
    rows_by_benchmark: dict[str, list[int]] = defaultdict(list)
    for row, text, prompt in zip(rows, raw, texts, strict=True):
        if benchmark := known.held_by(text, prompt):
            rows_by_benchmark[benchmark].append(row + 1)
    if rows_by_benchmark:
        listed = "; ".join(
            f"{name}: row{'s' * (len(at) > 1)} {', '.join(map(str, at[:5]))}{' …' * (len(at) > 5)}"
            for name, at in rows_by_benchmark.items()
        )
        count = sum(map(len, rows_by_benchmark.values()))
        raise ArgumentError(
            f"--prompts '{source}': {count} of {len(rows)} prompts are problems of a test set ({listed}); "
            f"calibrate on others, such as a train split"
        )
    return known.benchmarks


class _TestProblems:
    """The problems of the benchmarks, by digests of their words."""

    def __init__(self) -> None:
        listed: dict[str, list[str]] = json.loads(TEST_DIGESTS.read_text())
        listed["takeover_demo"] = [problem_digest(row["problem"]) for row in demo.problems()]
        listed["takeover_gpqa_diamond"] = _read_gpqa_digests()
        self._by_first: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        self._whole: dict[str, str] = {}
        self.benchmarks = [benchmark for benchmark, digests in listed.items() if digests]
        for benchmark, digests in listed.items():
            for digest in digests:
                size, first, whole = digest.split()
                self._whole[whole] = benchmark
                if int(size) >= _FIRST:
                    self._by_first[first].append((int(size), whole, benchmark))

    def held_by(self, text: str, prompt: str) -> str | None:
        """The benchmark of which `text` is a problem or `prompt` contains one."""
        if exact := self._whole.get(_digest(words(text), 8)):
            return exact
        listed = words(prompt)
        for start in range(len(listed) - _FIRST + 1):
            for size, whole, benchmark in self._by_first.get(_digest(listed[start : start + _FIRST], 4), ()):
                if _digest(listed[start : start + size], 8) == whole:
                    return benchmark
        return None


def _read_gpqa_digests() -> list[str]:
    """Digests of GPQA-Diamond, which is gated: none for whoever has no token of the hub, and hardly its questions either."""
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        return []
    import datasets

    try:
        rows = datasets.load_dataset("Idavidrein/gpqa", "gpqa_diamond", split="train")
    except Exception:  # no access, no network
        return []
    return [problem_digest(row["Question"]) for row in rows]
