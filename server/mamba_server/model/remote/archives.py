"""Archives that hold a model: their files are unpacked after the download, and one is read before it.

`model_copy` unpacks, `remote_config` reads config.json alone. Only files of a model are taken, from the
folder that holds config.json, or the adapter_config.json of an adapter; links, devices and paths that lead
out are left.
"""

import io
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from mamba_server.model.remote.errors import DamagedFile, MissingFiles
from mamba_server.model.remote.remote_file import (
    CONFIG_FILES,
    Packing,
    RemoteFile,
    RemoteStore,
    is_model_file,
)

MOST_SEARCHED = 64 << 20
"""Bytes of a compressed archive that are read to find config.json in it."""
_BUFFER = 64 << 10
_LARGEST_CONFIG = 16 << 20


def unpack(files: Sequence[RemoteFile], directory: Path, target: Path) -> None:
    """Move the files of a download from `directory` to `target`, with archives unpacked.

    Raises DamagedFile, MissingFiles, OSError.
    """
    for file in files:
        source = directory / file.path
        if file.packing:
            _extract(source, file.packing, target)
        else:
            destination = target / file.path
            destination.parent.mkdir(parents=True, exist_ok=True)
            _link(source, destination)
    if any((target / name).is_file() for name in CONFIG_FILES):
        return
    configs = [
        path
        for name in CONFIG_FILES
        for path in sorted(
            target.rglob(name), key=lambda path: (not _has_weights(path.parent), len(path.parts))
        )
    ]
    if not configs:
        raise MissingFiles("there is no config.json in the archive: pack the directory of a model")
    inner = configs[0].parent
    chosen = target.with_name(f"{target.name}.chosen")
    shutil.rmtree(chosen, ignore_errors=True)
    inner.rename(chosen)
    shutil.rmtree(target)
    chosen.rename(target)


def find_config(store: RemoteStore, file: RemoteFile) -> bytes:
    """Return config.json of an archive in a store, reading as little as possible. Raises RemoteError."""
    reader = io.BufferedReader(_StoredFile(store, file), _BUFFER)
    try:
        # Members of an uncompressed archive are skipped by their size; a compressed one is read through.
        with tarfile.open(fileobj=reader, mode="r:" if file.packing == "tar" else "r:gz") as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name == "config.json":
                    content = archive.extractfile(member)
                    assert content is not None  # it is a file
                    return content.read(_LARGEST_CONFIG)
    except _TooFar as error:
        raise MissingFiles(
            f"{file.path}: config.json is not among the first {MOST_SEARCHED >> 20} MiB of the compressed "
            "archive: pack it first, pack without compression, or give spec.model.config"
        ) from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DamagedFile(f"{file.path} is no readable archive ({error}): upload it again") from error
    raise MissingFiles(f"{file.path}: there is no config.json in the archive")


def _extract(source: Path, packing: Packing, target: Path) -> None:
    try:
        with tarfile.open(source, "r:" if packing == "tar" else "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                content = archive.extractfile(member) if member.isfile() and is_model_file(name) else None
                if content is None:
                    continue
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DamagedFile(
            f"{source.name} is no readable archive ({error}): pack and upload it again"
        ) from error


def _link(source: Path, destination: Path) -> None:
    """Give the file a second name, so that a download that is interrupted now has lost nothing."""
    try:
        destination.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, destination)


def _has_weights(directory: Path) -> bool:
    return any(directory.glob("*.safetensors"))


class _TooFar(Exception):
    """The search has read `MOST_SEARCHED` bytes."""


class _StoredFile(io.RawIOBase):
    """A file in a store as one that can be read and sought."""

    def __init__(self, store: RemoteStore, file: RemoteFile) -> None:
        super().__init__()
        self._store, self._file = store, file
        self._position = self._fetched = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        end = min(self._position + len(buffer), self._file.size)
        if end <= self._position:
            return 0
        if self._fetched >= MOST_SEARCHED:
            raise _TooFar
        content = b"".join(self._store.read(self._file, self._position, end))
        buffer[: len(content)] = content
        self._position += len(content)
        self._fetched += len(content)
        return len(content)
