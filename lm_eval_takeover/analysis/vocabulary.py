"""The texts of a run's tokens."""

from typing import Any

from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.ids import locate
from lm_eval_takeover.runs.run_reader import RunReader


def load_tokenizer(run: RunReader, given: str | None = None) -> Any:
    """The tokenizer that a run wrote with, or the given one. Raises ArgumentError where it cannot be had."""
    from transformers import AutoTokenizer

    own = run.arguments.get("guide") or run.arguments.get("base") or DEMO["guide"]
    path, revision = locate(str(given or own))
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    except Exception as error:  # as many ways as there are loaders
        raise ArgumentError(
            f"the tokenizer of '{path}' cannot be loaded; name one by --tokenizer <hub id or local folder>"
        ) from error
