"""Downloads one verified copy of a model into the Hub's cache, even if several processes fill that cache.

Pods of a node that share a cache call it before their engines start: one downloads at a time, and downloaded
files are compared once with the Hub's checksums. Torch-free.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from mamba_server.model.checkpoint.errors import DownloadFailed, InsufficientDiskSpace
from mamba_server.model.checkpoint.hub_room import remove_copies, remove_cut_off
from mamba_server.model.checkpoint.source import Progress, resolve, resolve_adapter
from mamba_server.model.remote.folder_lock import folder_lock
from mamba_settings.byte_size import binary_size

CHECKED = "mambaserve-checked.json"
"""File in a model's folder with the size and the time of change of each file whose checksum was right."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
"""Pattern of the names of large files in the Hub's cache: their checksums."""
_PIECE = 1 << 24


def sound_copy(
    uri: str,
    cache: Path,
    progress: Progress,
    say: Callable[[str], None],
    others: Collection[str] | None = None,
    *,
    adapter: bool = False,
) -> Path:
    """Return the directory of the model or adapter, whose large files have the Hub's checksums.

    Args:
        uri: a model that is downloaded, such as hf://OWNER/NAME[@REVISION].
        cache: the Hub's cache (HF_HUB_CACHE).
        progress: progress of the download, as in `resolve`.
        say: receives messages about other steps that take time.
        others: commits in the cache that other processes need. Other copies may be removed if space is short.
            None: no copy is removed.
        adapter: whether it is an adapter.

    Raises SourceError: as `resolve`, and DownloadFailed if a downloaded file is damaged again.
    """
    with _exclusive(cache, lambda: say(f"{uri}: waiting for a process that downloads to {cache}")):
        find = resolve_adapter if adapter else resolve
        directory = _resolve(find, uri, cache, progress, say, others)
        damaged = _damaged_files(directory, lambda: say(f"{uri}: comparing the checksums of its files"))
        for link in damaged:
            say(f"{uri}: {link.name} is damaged; downloading it again")
            link.resolve().unlink()
            link.unlink()
        if damaged:
            directory = find(uri, progress)
            if still_damaged := _damaged_files(directory, lambda: None):
                raise DownloadFailed(
                    f"{uri}: {still_damaged[0].name} was downloaded twice, and its checksum is not the "
                    "Hub's; check the disk, and proxies between this machine and the Hub"
                )
        return directory


def _resolve(
    find: Callable[..., Path],
    uri: str,
    cache: Path,
    progress: Progress,
    say: Callable[[str], None],
    others: Collection[str] | None,
) -> Path:
    """Download with `find`; if space is short, remove copies that no process needs and try again.

    `others` are the commits that other users of the volume need; None = unknown, and nothing is removed.
    """
    if others is None:
        return find(uri, progress, say=say)
    if freed := remove_cut_off(cache):
        say(f"{uri}: removed {binary_size(freed)} of interrupted downloads")
    try:
        return find(uri, progress, say=say)
    except InsufficientDiskSpace as error:
        removed = remove_copies(cache, {*others, error.commit})
        if not removed:
            raise
        say(f"{uri}: removed unused models to free disk space: {', '.join(removed)}")
        return find(uri, progress, say=say)


@contextlib.contextmanager
def _exclusive(cache: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock the cache against other downloads. Raises DownloadFailed."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(cache, on_wait))
        except OSError as error:
            raise DownloadFailed(
                f"{cache} cannot be written: {error.strerror}: check its owner and its free space"
            ) from error
        yield


def _damaged_files(directory: Path, on_compare: Callable[[], None]) -> list[Path]:
    """Return the files whose checksum is not the Hub's, and note the others, to read them only once."""
    # The directory is snapshots/COMMIT; the note belongs to all commits and is two levels up.
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
    on_compare()
    damaged = [path for path, blob in new.items() if not blob.is_file() or _checksum(blob) != blob.name]
    checked |= {blob.name: _identity(blob) for path, blob in new.items() if path not in damaged}
    part = note.with_suffix(".part")
    with contextlib.suppress(OSError):
        # Without the note, the files are compared again the next time, and nothing else changes.
        part.write_text(json.dumps(checked), encoding="utf-8")
        part.replace(note)
    return damaged


def _identity(blob: Path) -> list[int] | None:
    try:
        stat = blob.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


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
        entries = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
