"""`DiskFolder`: the directory of one disk tier, with its lock, its format version and its files.

A file is written under a temporary name and then renamed. So a process that is killed leaves only complete
files and temporary ones, and the next start removes the temporary ones. No file name is used twice, so that a
late removal cannot remove a newer file.
"""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from mamba_tier.byte_row import Buffers
from mamba_tier.errors import DirectoryBusy, DirectoryForeign, DirectoryUnusable
from mamba_tier.record_header import ALIGNMENT, FORMAT, Header, decoded, header_bytes

VERSION_FILE, LOCK_FILE = "version", "lock"
_SIGNATURE = "mambaserve bundles "
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{12})\.bundle")
_TEMPORARY = ".temporary"
_MOST_BUFFERS = 1024
"""Maximum number of buffers of one system call (IOV_MAX)."""


class StoredFile(NamedTuple):
    """A file that a previous process left; `header` is None if the file is damaged."""

    name: str
    header: Header | None
    size: int


class DiskFolder:
    """Writes, reads and removes the files of a store in a directory that it has locked until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            try:
                self._claim()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise DirectoryUnusable(
                f"{path}: {error.strerror or error}; choose a directory that can be written"
            ) from error
        self._numbers = count(1)

    def _claim(self) -> None:
        """Check the version of the folder's format; remove temporary files, and files of other formats.

        Raises DirectoryForeign.
        """
        try:
            text = (self._path / VERSION_FILE).read_text("utf-8", "replace")
        except FileNotFoundError:
            text = ""
            ours = {LOCK_FILE, "lost+found", VERSION_FILE + _TEMPORARY}
            foreign = sorted(set(os.listdir(self._path)) - ours)
            if foreign:
                raise DirectoryForeign(
                    f"{self._path} holds files of others, such as {foreign[0]!r}: choose an empty directory"
                ) from None
        if text and not text.startswith(_SIGNATURE):
            raise DirectoryForeign(
                f"{self._path / VERSION_FILE} is of another program: choose an empty directory"
            )
        current = f"{_SIGNATURE}{FORMAT}\n"
        for name in os.listdir(self._path):
            if name.endswith(_TEMPORARY) or (text != current and _NAME.fullmatch(name)):
                os.unlink(self._path / name)
        if text != current:
            fresh = self._path / (VERSION_FILE + _TEMPORARY)
            fresh.write_text(current, "utf-8")
            os.replace(fresh, self._path / VERSION_FILE)

    def files(self) -> Iterator[StoredFile]:
        """Yield all files, the least recently used first. Only their headers are read.

        A file that cannot be read has no header. Raises DirectoryUnusable.
        """
        entries = []
        try:
            for entry in os.scandir(self._path):
                match = _NAME.fullmatch(entry.name)
                if match is not None:
                    changed = entry.stat(follow_symlinks=False).st_mtime_ns
                    entries.append((changed, int(match[2], 16), int(match[1], 16), entry.name))
        except OSError as error:
            raise DirectoryUnusable(
                f"{self._path}: {error.strerror or error}; choose a directory that can be read"
            ) from error
        entries.sort()
        self._numbers = count(1 + max((number for _, number, _, _ in entries), default=0))
        for _, _, key, name in entries:
            try:
                header, size = self._header_of(name)
            except OSError:
                header, size = None, 0
            if header is not None and (header[0].key != key or header[1] + header[0].payload_bytes != size):
                header = None
            yield StoredFile(name, None if header is None else header[0], size)

    def _header_of(self, name: str) -> tuple[tuple[Header, int] | None, int]:
        """Return what `read_header` returns for a file, and the file's size. Raises OSError."""
        descriptor = os.open(self._path / name, os.O_RDONLY)
        try:
            return read_header(descriptor), os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def write(self, key: int, buffers: Buffers, *, sync: bool) -> str:
        """Write a file and return its name. Raises OSError, and then removes the file if possible."""
        name = f"{key:016x}-{next(self._numbers):012x}.bundle"
        temporary = self._path / (name + _TEMPORARY)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            try:
                write_all(descriptor, buffers)
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, self._path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if sync:
            self._sync_names()
        return name

    def open(self, name: str) -> int:
        """Return a file descriptor for reading the file. Raises OSError."""
        return os.open(self._path / name, os.O_RDONLY)

    def touch(self, name: str) -> None:
        """Record a use of the file: its modification time orders the files at the next start."""
        with contextlib.suppress(OSError):
            os.utime(self._path / name)

    def remove(self, name: str) -> None:
        """Remove a file if it exists. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path / name)

    def close(self) -> None:
        """Unlock the directory, so that another process may use it."""
        os.close(self._lock)

    def _sync_names(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_header(descriptor: int) -> tuple[Header, int] | None:
    """Return the header of a file and its length in bytes; None = it is damaged. Raises OSError."""
    raw = os.pread(descriptor, ALIGNMENT, 0)
    total = header_bytes(raw)
    if total is None:
        return None
    if total > len(raw):
        raw += os.pread(descriptor, total - len(raw), len(raw))
    header = decoded(raw)
    return None if header is None else (header, total)


def read_all(descriptor: int, buffers: Buffers, start: int) -> bool:
    """Fill the buffers from offset `start`; return False if the file is too short. Raises OSError."""
    rest = list(buffers)
    while rest:
        count = os.preadv(descriptor, rest[:_MOST_BUFFERS], start)
        if not count:
            return False
        start += count
        rest = _behind(rest, count)
    return True


def write_all(descriptor: int, buffers: Buffers) -> None:
    """Write all buffers at the current position of the file descriptor. Raises OSError."""
    rest = [buffer for buffer in buffers if buffer.nbytes]
    while rest:
        count = os.writev(descriptor, rest[:_MOST_BUFFERS])
        if not count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest = _behind(rest, count)


def _behind(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return the buffers without their first `count` bytes."""
    place = 0
    while place < len(buffers) and count >= buffers[place].nbytes:
        count -= buffers[place].nbytes
        place += 1
    rest = buffers[place:]
    if count:
        rest[0] = rest[0][count:]
    return rest


def _locked(path: Path) -> int:
    """Lock the directory; return the lock's file descriptor. Raises DirectoryBusy."""
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise DirectoryBusy(
            f"{path} is in use by process {holder or 'of another engine'}: give each engine its own directory"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
