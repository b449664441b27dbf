"""`model_copy`: the directory in the model cache with the files of a bucket, a registry or a web server.

Called by `checkpoint.source`. The cache has the layout of the Hub's: models--NAME/snapshots/COMMIT. A copy
is made in models--NAME/partial/COMMIT, stays there while it is not whole, and appears at its place at once.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mamba_api.model_uri import ModelUri
from mamba_server.model.remote.archives import unpack
from mamba_server.model.remote.errors import FullDisk, Interrupted, MissingFiles, RemoteError
from mamba_server.model.remote.folder_lock import folder_lock
from mamba_server.model.remote.piece_journal import PieceJournal
from mamba_server.model.remote.ranged_download import RangedDownload, Report, unwritable
from mamba_server.model.remote.remote_file import RemoteFile, RemoteStore
from mamba_server.model.remote.store_of import store_of
from mamba_server.model.remote.use_record import record_use
from mamba_settings.byte_size import binary_size

PARTIAL = "partial"
SNAPSHOTS = "snapshots"
_REFERENCE = Path("refs") / "main"
_UNPACKED = 2
"""Bytes of disk for each byte of an archive: the archive and its files."""


def model_copy(
    uri: ModelUri,
    text: str,
    cache: Path,
    report: Report,
    say: Callable[[str], None],
    *,
    offline: bool = False,
) -> Path:
    """Return the directory with the model's files, downloading missing files.

    If the store cannot be reached, the result is the copy of the last download.

    Args:
        uri: the parsed URI, with a scheme of `REMOTE`.
        text: the URI as it was written, for messages.
        cache: the model cache (HF_HUB_CACHE).
        report: receives the bytes on disk and in all.
        say: receives messages.
        offline: whether only the cache is read.

    Raises RemoteError.
    """
    folder = cache / uri.folder
    if uri.pin and (copy := folder / SNAPSHOTS / uri.pin).is_dir():
        return copy
    if offline:
        return _last(folder, text, uri.pin)
    try:
        store = store_of(uri, text)
        files = store.files()
        commit = store.commit(files)
    except Interrupted:
        with contextlib.suppress(Interrupted):
            copy = _last(folder, text, uri.pin)
            say(f"{text}: the store cannot be reached; the copy {copy.name} of an earlier download is used")
            return copy
        raise
    if uri.pin and commit != uri.pin:
        raise MissingFiles(
            f"{text}: the files are another revision now ({commit}): name that one, or restore the files"
        )
    copy = folder / SNAPSHOTS / commit
    try:
        with folder_lock(folder, lambda: say(f"{text}: waiting for a process that downloads to {folder}")):
            if not copy.is_dir():
                record_use(copy, text)
                _download(
                    store, files, copy, folder / PARTIAL / commit, report, lambda line: say(f"{text}: {line}")
                )
            if uri.pin is None:
                _refer(folder, commit)
    except OSError as error:
        raise unwritable(error, folder) from error
    except FullDisk:
        raise
    except RemoteError as error:
        prefixed = str(error) if str(error).startswith(text) else f"{text}: {error}"
        if isinstance(error, Interrupted):
            prefixed += "; start again to resume the download where it stopped"
        raise type(error)(prefixed) from error
    return copy


def _last(folder: Path, text: str, pin: str | None) -> Path:
    """Return the copy of the last download of an unpinned URI. Raises Interrupted."""
    with contextlib.suppress(OSError):
        copy = folder / SNAPSHOTS / (folder / _REFERENCE).read_text(encoding="utf-8").strip()
        if pin is None and copy.is_dir():
            return copy
    raise Interrupted(f"{text}: the model is not in the cache, and only the cache is read (HF_HUB_OFFLINE)")


def _refer(folder: Path, commit: str) -> None:
    reference = folder / _REFERENCE
    reference.parent.mkdir(parents=True, exist_ok=True)
    part = reference.with_suffix(".part")
    part.write_text(commit, encoding="utf-8")
    part.replace(reference)


def _download(
    store: RemoteStore,
    files: Sequence[RemoteFile],
    copy: Path,
    partial: Path,
    report: Report,
    say: Callable[[str], None],
) -> None:
    """Download `files` of `store` into `partial`, and rename it to `copy` when it is whole.

    Raises RemoteError, OSError.
    """
    for other in partial.parent.glob("*"):
        if not other.name.startswith(partial.name):
            # The store has other files now, so that nothing continues that download.
            shutil.rmtree(other, ignore_errors=True)
            other.unlink(missing_ok=True)
    partial.mkdir(parents=True, exist_ok=True)
    note = partial.with_name(f"{partial.name}.pieces")
    journal = PieceJournal(note)
    try:
        download = RangedDownload(store, files, partial, journal)
        missing = download.missing_bytes()
        _require_space(files, missing, partial)
        total = sum(file.size for file in files)
        if 0 < missing < total:
            say(f"resuming a download, {binary_size(total - missing)} of {binary_size(total)} are there")
        download.run(report, say)
    finally:
        journal.close()
    whole = partial
    if any(file.packing for file in files):
        whole = partial.with_name(f"{partial.name}.unpacked")
        shutil.rmtree(whole, ignore_errors=True)
        say("unpacking its files")
        unpack(files, partial, whole)
    copy.parent.mkdir(parents=True, exist_ok=True)
    whole.rename(copy)
    shutil.rmtree(partial, ignore_errors=True)
    note.unlink(missing_ok=True)


def _require_space(files: Sequence[RemoteFile], missing: int, partial: Path) -> None:
    """Raise FullDisk unless the disk of `partial` has room for `missing` bytes and for unpacked archives.

    It is checked before the first byte: half a model is useless, and fills others' disks. `files` are all
    files of the model.
    """
    unpacked = sum(file.size for file in files if file.packing) * (_UNPACKED - 1)
    needed, free = missing + unpacked, shutil.disk_usage(partial).free
    if needed > free:
        raise FullDisk(
            f"the download needs {binary_size(needed)}, and {partial} has {binary_size(free)} free: free "
            "disk space, or set HF_HOME to a directory on a larger volume (in a cluster, enlarge that of "
            "spec.model.cache)",
            partial.name,
        )
