"""Checkpoints: paths, ids, and digests of their files."""

import hashlib
from collections.abc import Sequence
from functools import cache
from os.path import expanduser
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, try_to_load_from_cache

from lm_eval_takeover.arguments import check_folder
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, first_line
from lm_eval_takeover.method.model_id import ModelId


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
        if waiting := [entry.name for entry in folder.iterdir() if entry.exists() and not (entry.is_file() or entry.is_dir())]:
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


def identify(name: str, path: str, revision: str | None, subfolder: str | None = None) -> ModelId:
    """Id and revision of what `locate(name)` found: the hub's commit, or a folder's digest. Ours: `demo-base`, `demo-guide`."""
    folder = Path(path)
    if not folder.is_dir():
        parts = find_folder(path, revision, subfolder).parts
        return ModelId(path, parts[len(parts) - parts[::-1].index("snapshots")] if "snapshots" in parts else revision)
    demo_role = next((role for role, bundled in DEMO.items() if folder.resolve() == bundled.resolve()), None)
    label = f"demo-{demo_role}" if demo_role else Path(name).resolve().name
    return ModelId(label, sampled_digest(folder / (subfolder or "")))


def whole_digest(folder: Path) -> str:
    """`blake2b:…` of every byte that a local checkpoint computes with: configuration, code and weights. Reads about 1 GB/s."""
    patterns = ("config.json", "adapter_config.json", "*.safetensors", "*.bin", "*.gguf", "*.py")
    return _digest(hashlib.blake2b(digest_size=32), folder, patterns, sampled=False)


def sampled_digest(folder: Path) -> str:
    """`sha256:…` of a local checkpoint: its configuration, and of each weight file the size and 64 KiB of each 1/256."""
    return _digest(hashlib.sha256(), folder, ("config.json", "*.safetensors", "*.bin", "*.gguf"), sampled=True)


def _digest(digest: Any, folder: Path, patterns: Sequence[str], *, sampled: bool) -> str:
    """Of the files that match any pattern, in the order of their names, with their sizes."""
    chunk = 2**16 if sampled else 2**20
    for file in sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            for start in range(0, size, max(chunk, size // 256 if sampled else 0)):
                stream.seek(start)
                digest.update(stream.read(chunk))
    return f"{digest.name}:{digest.hexdigest()}"
