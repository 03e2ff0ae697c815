"""Words per sentence of README.md, docs/ and the package's docstrings and messages: words, sentences, mean and longest sentence.

    python scripts/words_per_sentence.py                   the working tree
    python scripts/words_per_sentence.py COMMIT            an earlier state
    python scripts/words_per_sentence.py --longer_than 30  the sentences with more words, longest first

In pages code, tables, pictures, headings and comments are left out. A list item or a paragraph ends a sentence. Messages are the
texts of errors, warnings and prints.
"""

import argparse
import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = (
    r"^```.*?^```",  # fenced code
    r"<!--.*?-->",
    r"^(?:    |\t)\S.*$",  # indented code
    r"^ *\|.*$",  # tables
    r"^#.*$",
    r"!\[.*?\]\(.*?\)",  # pictures
)
SPOKEN = re.compile(r"Error$|^CannotShow$|^(?:warning|info|error|print)$")  # calls whose texts are messages


def split_sentences(page: str) -> list[str]:
    """The sentences of running text. Code in a line counts as one word, a link as its text."""
    for pattern in LEFT_OUT:
        page = re.sub(pattern, "\n", page, flags=re.MULTILINE | (re.DOTALL if pattern[-1] != "$" else 0))
    page = re.sub(r"`[^`]*`", "code", page)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    blocks = re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", page, flags=re.MULTILINE)
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?])[*)\"]*\s+", " ".join(block.split()))]
    return [sentence for sentence in parts if count_words(sentence)]


def count_words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def read_files(commit: str | None) -> dict[str, str]:
    """README.md, docs/ and the package's modules by their paths."""
    if commit is None:
        folders = (ROOT.glob("README.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("lm_eval_takeover/**/*.py"))
        return {file.relative_to(ROOT).as_posix(): file.read_text() for files in folders for file in sorted(files)}

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    names = git("ls-tree", "-r", "--name-only", commit, "README.md", "docs/", "lm_eval_takeover/").split("\n")
    return {name: git("show", f"{commit}:{name}") for name in names if name.endswith((".md", ".py"))}


def split_module(source: str) -> tuple[list[str], list[str]]:
    """`(sentences of docstrings, sentences of messages)`."""
    docstrings, messages = [], []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            docstrings += split_sentences(ast.get_docstring(node) or "")
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if SPOKEN.search(name) and (text := _read_text(node.args[0])):
                messages += split_sentences(text.replace("; ", ".\n\n"))
    return docstrings, messages


def _read_text(node: ast.expr) -> str:
    """A text constant or f-string, whose values are one word each."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_read_text(part) if isinstance(part, ast.Constant) else "code" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def group_sentences(files: dict[str, str]) -> dict[str, list[str]]:
    """By page, and by room of the package."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, text in files.items():
        if name.endswith(".md"):
            groups[name] += split_sentences(text)
            continue
        room = "/".join(name.split("/")[1 : 3 if "/commands/" in name else 2])
        for kind, sentences in zip(("docstrings", "messages"), split_module(text), strict=True):
            groups[f"{room}, {kind}"] += sentences
    return groups


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--longer_than", type=int, metavar="WORDS")
    options = parser.parse_args()
    groups = group_sentences(read_files(options.commit))
    if options.longer_than is not None:
        found = [(count_words(one), place, one) for place, sentences in groups.items() for one in sentences]
        for length, place, sentence in sorted(found, reverse=True):
            if length > options.longer_than:
                print(f"{length:>4}  {place}: {sentence}")
        return
    print(f"{'page':<44}{'words':>7}{'sentences':>11}{'mean':>6}{'longest':>9}")
    totals: dict[str, list[int]] = defaultdict(list)
    for place, sentences in groups.items():
        lengths = [count_words(sentence) for sentence in sentences]
        totals[f"all {place.rpartition(', ')[2] if ', ' in place else 'pages'}"] += lengths
        _print_line(place, lengths)
    for place, lengths in totals.items():
        _print_line(place, lengths)


def _print_line(place: str, lengths: list[int]) -> None:
    if lengths:
        print(f"{place:<44}{sum(lengths):>7}{len(lengths):>11}{sum(lengths) / len(lengths):>6.1f}{max(lengths):>9}")


if __name__ == "__main__":
    main()
