"""Folders of models in which something is not what it should be: one line, or none where nothing reads it; never a wait."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers.one_line import one_line
from helpers.processes import environment

from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.pair import pair as pairs
from lm_eval_takeover.pair.ids import whole_digest
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

MESSAGES = [{"role": "user", "content": "How many?"}]


@pytest.fixture
def folder(tmp_path, random_pair):
    return shutil.copytree(random_pair["base"], tmp_path / "spoilt")


def open_folder(folder):
    """All of what is read before the first token."""
    pair = Pair(Member("base", str(folder)), None)
    assert pair.base.model is not None and whole_digest(folder)
    return pair


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["x.bin", "model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_pipe_is_refused_at_once(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with one_line(TakeoverError, f"base='{folder}': '{name}' is no regular file"):
        open_folder(folder)


@pytest.mark.parametrize("where", ["vocabulary", "configuration"])
def test_a_token_id_that_no_vocabulary_has_is_one_line(folder, where):
    if where == "vocabulary":
        edit(folder / "tokenizer.json", lambda tokenizer: tokenizer["model"]["vocab"].update({"far": 2**31 - 1}))
    else:
        edit(folder / "config.json", lambda config: config.update(vocab_size=2**31 - 1))
    with one_line(TakeoverError, str(folder), "more than any real vocabulary"):
        open_folder(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("left", [None, 0, 0.5])
def test_a_file_that_is_gone_empty_or_cut_off_is_one_line(folder, name, left):
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if left is None:
        (folder / name).symlink_to("/nowhere")
    else:
        (folder / name).write_bytes(content[: int(left * len(content))])
    with one_line(TakeoverError, f"base='{folder}' cannot be loaded"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
         "no end in 0.5 s"),
        ("{{ raise_exception('only \x1b[31mred\x1b[0m\nconversations') }}", "only \x1b[31mred"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{% for %}", "cannot be used: "),
        ("{{ messages[0].nothing.more }}", "cannot be used: "),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("system", [False, True])
def test_a_chat_template_that_fails_or_never_ends_is_one_line(folder, monkeypatch, template, words, system):
    monkeypatch.setattr(pairs, "TEMPLATE_SECONDS", 0.5)
    (folder / "chat_template.jinja").write_text(template)
    pair = open_folder(folder)
    messages = [{"role": "system", "content": "Be brief."}] * system + MESSAGES
    with one_line(TakeoverError, f"the chat template of '{folder}' cannot be used: ", words):
        pair.chat_prompt(messages)


LITTLE = """
import sys
sys.argv = ["lm_eval"]
from lm_eval_takeover.errors import install_error_hook
install_error_hook()
{code}
"""


@pytest.mark.parametrize("code", ["bytes(2**60)", "raise MemoryError", "raise ValueError('a \\x1b[31mdefect')"])
def test_too_little_memory_is_one_line_under_the_commands(code):
    done = subprocess.run([sys.executable, "-c", LITTLE.format(code=code)], capture_output=True, text=True, env=environment())
    if "defect" in code:
        assert done.returncode == 1 and "Traceback" in done.stderr
        return
    assert done.returncode == 2 and done.stderr.startswith("error: too little memory (") and done.stderr.count("\n") == 1
