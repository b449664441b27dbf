"""`RemoteFile` and `RemoteStore`: what every kind of store tells about its files. Pure.

`store_of` makes a store of a URI; `ranged_download`, `model_copy` and `remote_config` read it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal, Protocol

from mamba_server.model.remote.errors import MissingFiles

MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")
"""Patterns of the files that a model needs; pickled weights are never downloaded."""
CONFIG_FILES = ("config.json", "adapter_config.json")
"""Files of which each directory has one: the first in a model's directory, the second in an adapter's."""
ARCHIVES = (".tar", ".tar.gz", ".tgz")
"""Endings of archives whose files are a model."""
Packing = Literal["", "tar", "gzip"]


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum that a store states for a file."""

    algorithm: Literal["md5", "md5-of-parts", "sha256", "sha512"]
    digest: str
    """Digest in lower-case hexadecimal digits."""
    parts: int = 1
    """md5-of-parts: number of parts with which the file was uploaded; their size is not known."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Description of one of a model's files by a remote store, such as a bucket or a registry."""

    path: str
    """Path inside the model's directory, with slashes."""
    size: int
    """Bytes."""
    address: str
    """Name by which the store knows the file: a key, a digest or a URL."""
    version: str = ""
    """Word that changes with the content: an entity tag or a digest; empty = the store has none."""
    checksum: Checksum | None = None
    packing: Packing = ""
    """Whether the file is an archive whose files are the model, and how it is compressed."""


class RemoteStore(Protocol):
    """A place that holds the files of one model. Its methods are called by several threads."""

    def files(self) -> Sequence[RemoteFile]:
        """Return the files that a model needs. Raises RemoteError."""
        ...

    def commit(self, files: Sequence[RemoteFile]) -> str:
        """Return the word that identifies the content of `files`, in hexadecimal digits."""
        ...

    def is_divisible(self, file: RemoteFile) -> bool:
        """Return whether the store sends a part of the file. Raises RemoteError."""
        ...

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of [start, end). Raises RemoteError; FilesChanged if the file was replaced."""
        ...


def packing_of(name: str) -> Packing:
    """Return how the archive with the name `name` is compressed; "" = it is no archive."""
    if name.endswith(".tar"):
        return "tar"
    return "gzip" if name.endswith(ARCHIVES) else ""


def is_model_file(path: str) -> bool:
    """Return whether a model needs the file, and its path stays inside the model's directory."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[\x00-\x1f\\]", path):
        return False
    return any(fnmatch(path, pattern) for pattern in MODEL_FILES)


def digest_of_listing(files: Iterable[RemoteFile]) -> str:
    """Return 40 hexadecimal digits that change with name, size, version or checksum of any file."""
    lines = sorted(
        "\0".join((file.path, str(file.size), file.version, _digest(file.checksum))) for file in files
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:40]


def _digest(checksum: Checksum | None) -> str:
    return checksum.digest if checksum is not None else ""


def require_model(files: Sequence[RemoteFile], uri: str, advice: str) -> Sequence[RemoteFile]:
    """Return `files` if they can be a model or an adapter.

    Raises MissingFiles, whose message ends with `advice`.
    """
    if any(file.packing or file.path in CONFIG_FILES for file in files):
        return files
    listed = f"{len(files)} other files of a model are there" if files else "nothing of a model is there"
    raise MissingFiles(f"{uri}: there is no config.json ({listed}): {advice}")
