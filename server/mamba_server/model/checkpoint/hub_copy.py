"""One sound copy of a Hub model in the Hub's cache, whoever else fills the same directory.

Pods of a node that share one directory each call it before their engine starts: one downloads at a time, and
what arrived is compared once with the checksums that the Hub gave. Torch-free.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from mamba_server.model.checkpoint.errors import DownloadFailed, InsufficientDiskSpace
from mamba_server.model.checkpoint.hub_room import remove_copies, remove_cut_off
from mamba_server.model.checkpoint.source import Progress, resolve
from mamba_settings.byte_size import binary_size

LOCK = "mambaserve-download.lock"
CHECKED = "mambaserve-checked.json"
"""Beside the files of a model: by name of a file its size and time of change when its checksum was right."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
"""The Hub's cache keeps a large file under its checksum."""
_PIECE = 1 << 24
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def sound_copy(
    uri: str,
    cache: Path,
    progress: Progress,
    say: Callable[[str], None],
    others: Collection[str] | None = None,
) -> Path:
    """Directory of the model, its large files as the Hub has them.

    Args:
        uri: hf://OWNER/NAME[@REVISION].
        cache: the Hub's cache (HF_HUB_CACHE).
        progress: told as in `resolve`.
        say: told in words what takes time besides.
        others: commits on the volume that something else needs; any other copy may go where room lacks.
            None: everything stays.

    Raises SourceError: as `resolve`, and DownloadFailed where what arrived is damaged.
    """
    with _alone(cache, lambda: say(f"{uri}: another process downloads to {cache}; waits for it")):
        directory = _resolve(uri, cache, progress, say, others)
        damaged = _damaged(directory, lambda: say(f"{uri}: compares the checksums of its files"))
        for link in damaged:
            say(f"{uri}: {link.name} is damaged and is downloaded again")
            link.resolve().unlink()
            link.unlink()
        if damaged:
            directory = resolve(uri, progress)
            if left := _damaged(directory, lambda: None):
                raise DownloadFailed(
                    f"{uri}: {left[0].name} arrives damaged each time: its checksum is not the Hub's; check "
                    "the disk and what is between it and the Hub"
                )
        return directory


def _resolve(
    uri: str, cache: Path, progress: Progress, say: Callable[[str], None], others: Collection[str] | None
) -> Path:
    """Download the model, if need be into the room of copies that nobody needs."""
    if others is None:
        return resolve(uri, progress)
    if freed := remove_cut_off(cache):
        say(f"{uri}: removed {binary_size(freed)} of files whose download was cut off")
    try:
        return resolve(uri, progress)
    except InsufficientDiskSpace as error:
        gone = remove_copies(cache, {*others, error.commit})
        if not gone:
            raise
        say(f"{uri}: removed {', '.join(gone)}, which nothing uses, to make room")
        return resolve(uri, progress)


@contextlib.contextmanager
def _alone(cache: Path, waits: Callable[[], None]) -> Iterator[None]:
    """Others that fill the same cache wait. The kernel gives the lock back when its holder ends, however."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = os.open(cache / LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    except OSError as error:
        raise DownloadFailed(
            f"{cache} cannot be written: {error.strerror}: check its owner and its room"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            # Some network file systems have none; the Hub's client then keeps each single file whole.
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(lock)


def _damaged(directory: Path, compares: Callable[[], None]) -> list[Path]:
    """Files of the copy whose content is not what the Hub's checksum says; right ones are noted."""
    # snapshots/COMMIT: what belongs to all commits is kept two levels up.
    note = directory.parent.parent / CHECKED
    checked = _read(note)
    large = {path: path.resolve() for path in sorted(directory.rglob("*")) if path.is_symlink()}
    new = {
        path: blob
        for path, blob in large.items()
        if _SHA256.fullmatch(blob.name) and checked.get(blob.name) != _identity(blob)
    }
    if not new:
        return []
    compares()
    damaged = [path for path, blob in new.items() if not blob.is_file() or _checksum(blob) != blob.name]
    checked |= {blob.name: _identity(blob) for path, blob in new.items() if path not in damaged}
    part = note.with_suffix(".part")
    with contextlib.suppress(OSError):
        # A note that cannot be written costs another comparison, and no more.
        part.write_text(json.dumps(checked), encoding="utf-8")
        part.replace(note)
    return damaged


def _identity(blob: Path) -> list[int] | None:
    try:
        found = blob.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _checksum(blob: Path) -> str:
    total = hashlib.sha256()
    try:
        with blob.open("rb") as file:
            while piece := file.read(_PIECE):
                total.update(piece)
    except OSError:
        return ""
    return total.hexdigest()


def _read(note: Path) -> dict[str, list[int] | None]:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
