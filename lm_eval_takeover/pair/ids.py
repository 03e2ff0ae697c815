"""Where a checkpoint lies, and digests of its files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path


def locate(name: str) -> tuple[str, str | None]:
    """Split `id@revision`; a local folder is taken as it is."""
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser()), None
    path, _, revision = name.partition("@")
    return path, revision or None


def whole_digest(folder: Path) -> str:
    """`blake2b:…` of every byte that a local checkpoint computes with: configuration, code and weights. Reads about 1 GB/s."""
    digest = hashlib.blake2b(digest_size=32)
    for file, size in _files(folder, "config.json", "*.safetensors", "*.bin", "*.py"):
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(2**24):
                digest.update(chunk)
    return f"blake2b:{digest.hexdigest()}"


def folder_digest(folder: Path) -> str:
    """`sha256:…` of a local checkpoint: its configuration, and of each weight file the size and 64 KiB of each 1/256."""
    digest, chunk = hashlib.sha256(), 2**16
    for file, size in _files(folder, "config.json", "*.safetensors", "*.bin"):
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            for start in range(0, size, max(chunk, size // 256)):
                stream.seek(start)
                digest.update(stream.read(chunk))
    return f"sha256:{digest.hexdigest()}"


def _files(folder: Path, *kinds: str) -> Iterator[tuple[Path, int]]:
    """The files of these kinds in the order of their names, with their sizes in bytes."""
    for file in sorted(path for kind in kinds for path in folder.glob(kind)):
        yield file, file.stat().st_size
