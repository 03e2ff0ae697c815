"""Words per sentence of README.md and docs/: pages, their words, sentences, mean and longest sentence.

    python scripts/words_per_sentence.py            the working tree
    python scripts/words_per_sentence.py COMMIT     an earlier state

Code, tables, pictures, headings and comments are left out. A list item or a paragraph ends a sentence.
"""

import re
import subprocess
import sys
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


def sentences(page: str) -> list[str]:
    """The sentences of a page's running text. Code in a line counts as one word, a link as its text."""
    for pattern in LEFT_OUT:
        page = re.sub(pattern, "\n", page, flags=re.MULTILINE | (re.DOTALL if pattern[-1] != "$" else 0))
    page = re.sub(r"`[^`]*`", "code", page)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    blocks = re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", page, flags=re.MULTILINE)
    found = [part for block in blocks for part in re.split(r"(?<=[.!?])[*)\"]*\s+", " ".join(block.split()))]
    return [sentence for sentence in found if words(sentence)]


def words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def pages(commit: str | None) -> dict[str, str]:
    if commit is None:
        files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    names = git("ls-tree", "--name-only", commit, "README.md", "docs/").split()
    return {name: git("show", f"{commit}:{name}") for name in names if name.endswith(".md")}


if __name__ == "__main__":
    print(f"{'page':<26}{'words':>7}{'sentences':>11}{'mean':>6}{'longest':>9}")
    found = {
        name: [words(sentence) for sentence in sentences(page)] or [0]
        for name, page in pages(sys.argv[1] if len(sys.argv) > 1 else None).items()
    }
    found["all"] = [length for page in found.values() for length in page]
    for name, lengths in found.items():
        print(f"{name:<26}{sum(lengths):>7}{len(lengths):>11}{sum(lengths) / len(lengths):>6.1f}{max(lengths):>9}")
