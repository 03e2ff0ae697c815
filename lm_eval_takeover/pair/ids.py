"""Checkpoints: paths, ids, and digests of their files."""

import contextlib
import json
from collections.abc import Mapping
from functools import cache
from os.path import expanduser
from pathlib import Path

from huggingface_hub import constants, get_session, hf_hub_download, try_to_load_from_cache

from lm_eval_takeover.arguments import ModelArguments, check_folder
from lm_eval_takeover.calibration.files import ModelId
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, first_line
from lm_eval_takeover.storage.digests import digest_files
from lm_eval_takeover.storage.files import read_bounded

# Of a local checkpoint, beside its code, what its index names and a GGUF that is asked for. Not what trainers leave beside it.
_LOADED = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.safetensors", "*.bin", "additional_chat_templates/*")


def locate(name: str) -> tuple[str, str | None]:
    """Split `id@revision`; a local folder is taken as it is."""
    if Path(expanduser(name)).is_dir():  # which leaves the name of an unknown user as it is
        return expanduser(name), None
    path, _, revision = name.partition("@")
    return path, revision or None


def find_folder(path: str, revision: str | None, subfolder: str | None = None, file: str = "config.json") -> Path:
    """The folder of a repository's files: a local one, or in the hub's cache `…/snapshots/COMMIT`. `path` if it is neither."""
    if Path(path).is_dir():
        return Path(path, subfolder or "")
    found = try_to_load_from_cache(path, f"{subfolder}/{file}" if subfolder else file, revision=revision or "main")
    return Path(found).parent if isinstance(found, str) else Path(path)


def check_source(argument: str, name: str, file: str = "config.json") -> None:
    """Raises ArgumentError for a model that is no folder and cannot be asked of the hub, which would be tried for minutes."""
    check_folder(argument, name)
    path, revision = locate(name)
    if (folder := find_folder(path, revision, file=file)).is_dir():
        entries = folder.iterdir() if (folder / file).exists() else ()
        if waiting := [entry.name for entry in entries if entry.exists() and not (entry.is_file() or entry.is_dir())]:
            raise ArgumentError(
                f"{argument}='{path}': '{waiting[0]}' is no regular file, and reading it may never end; remove it"
            )
        return
    problem = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _find_problem(constants.ENDPOINT)
    if problem is not None:
        raise ArgumentError(
            f"{argument}='{path}' cannot be loaded: it is neither a folder nor in the hub's cache, and {problem}; check its name "
            f"and the network (expected a folder or a hub id, 'owner/name[@revision]')"
        )


@cache
def _find_problem(endpoint: str) -> str | None:
    """Why the hub does not answer, which is tried once; None if it does."""
    try:
        get_session().head(endpoint, timeout=10)
    except Exception as error:  # of the HTTP library, which changes between versions of huggingface_hub
        return f"{endpoint} does not answer ({first_line(error)})"
    return None


def identify(
    name: str, path: str, revision: str | None, given: ModelArguments | None = None, code: Mapping[str, str] = {}
) -> ModelId:
    """The id of what `locate(name)` found, and its revision: the hub's commit, or the digest of a folder's files.

    Those of its adapter, and of other repositories with a file of `code` that it runs, stand behind it. Ours: `demo-base`,
    `demo-guide`.
    """
    given = given or ModelArguments()
    folder, own = Path(path), find_revision(path, revision, given.subfolder, gguf_file=given.gguf_file)
    label = path
    if folder.is_dir():
        demo_role = next((role for role, bundled in DEMO.items() if folder.resolve() == bundled.resolve()), None)
        label = f"demo-{demo_role}" if demo_role else Path(name).resolve().name
    parts = (("/", given.subfolder), (":", given.gguf_file), ("+", given.peft))
    revisions = [own, ask_revision(given.peft, "adapter_config.json")[1]] if given.peft else [own]
    revisions += [f"{other}@{ask_revision(other, file)[1]}" for other, file in sorted(code.items()) if other != path]
    revision = "+".join(each or "" for each in revisions)
    return ModelId(label + "".join(mark + part for mark, part in parts if part), revision or None)


def ask_revision(name: str, file: str) -> tuple[str, str | None]:
    """The path of a repository that has this file, and its revision now: the hub is asked, where there is a network."""
    path, revision = locate(name)
    if not Path(path).is_dir():
        with contextlib.suppress(Exception):  # no network, no such repository: its loader says so
            hf_hub_download(path, file, revision=revision)
    return path, find_revision(path, revision, file=file)


def find_revision(
    path: str, revision: str | None, subfolder: str | None = None, file: str = "config.json", gguf_file: str | None = None
) -> str | None:
    """The commit of a repository in the hub's cache, else its revision; of a local folder `blake2b:…` of what is loaded."""
    if Path(path).is_dir():
        return f"blake2b:{_digest_loaded(Path(path, subfolder or ''), gguf_file)}"
    parts = find_folder(path, revision, subfolder, file).parts
    return parts[len(parts) - parts[::-1].index("snapshots")] if "snapshots" in parts else revision


def _digest_loaded(folder: Path, gguf_file: str | None) -> str:
    """Of every byte that loading opens: configurations, tokenizer, weights and what their index names, and code."""
    names = {file for pattern in _LOADED for file in folder.glob(pattern)}
    names |= {file for file in folder.rglob("*.py") if not any(part[0] == "." for part in file.relative_to(folder).parts)}
    for index in folder.glob("*.index.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):  # its loader says what is wrong
            named = json.loads(read_bounded(index)).get("weight_map", {}).values()
            names |= {folder / name for name in named if not Path(name).is_absolute()}
    names |= {folder / gguf_file} if gguf_file else set()
    return digest_files(folder, (file.relative_to(folder) for file in names if file.is_file()))
