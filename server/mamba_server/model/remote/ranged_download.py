"""Downloads the files of a store into a directory: in pieces, several at a time, resuming what is there.

Called by `model_copy`. A piece that breaks off continues where it stopped, after a pause that doubles; a file
that differs from its checksum is fetched once more.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from mamba_server.model.remote.checksums import Verdict, verdict
from mamba_server.model.remote.errors import DamagedFile, FullDisk, Interrupted, RemoteError
from mamba_server.model.remote.piece_journal import PieceJournal
from mamba_server.model.remote.remote_file import RemoteFile, RemoteStore

PIECE_BYTES = 32 << 20
CONNECTIONS = 8
"""Pieces that are fetched at a time."""
HASHING_THREADS = 4
ATTEMPTS = 6
"""Times that a piece is begun or continued without a byte of progress before the download fails."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 20.0
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
Report = Callable[[int, int], None]
"""Callback `report(done, total)` with bytes."""


@dataclass(frozen=True, slots=True)
class _Piece:
    file: RemoteFile
    start: int
    end: int


@dataclass
class _Progress:
    """Counts the bytes of all files that are on disk, and reports each change. Threads may share it."""

    total: int
    report: Report
    done: int = 0
    lock: Lock = field(default_factory=Lock)

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            self.report(self.done, self.total)


class RangedDownload:
    """Downloads files of a store into one directory in pieces, and resumes where a download broke off."""

    def __init__(
        self,
        store: RemoteStore,
        files: Sequence[RemoteFile],
        directory: Path,
        journal: PieceJournal,
    ) -> None:
        """Prepare the download.

        Args:
            store: where the files are.
            files: files to fetch.
            directory: where to write the files.
            journal: record of the pieces that are in `directory` already.
        """
        self._store, self._files, self._directory, self._journal = store, files, directory, journal
        self._stop = Event()
        self._pieces = {file.path: _pieces(store, file) for file in files}

    def missing_bytes(self) -> int:
        """Return the bytes that are not on disk yet."""
        return sum(
            piece.end - piece.start
            for pieces in self._pieces.values()
            for piece in pieces
            if not self._has(piece)
        )

    def run(self, report: Report, say: Callable[[str], None]) -> None:
        """Fetch the missing pieces and compare every file with its checksum. Raises RemoteError.

        A file that differs is downloaded once more.

        Args:
            report: receives the number of bytes on disk, and the number in all.
            say: receives messages.
        """
        total = sum(file.size for file in self._files)
        progress = _Progress(total, report, total - self.missing_bytes())
        report(progress.done, total)
        self._fetch([piece for pieces in self._pieces.values() for piece in pieces], progress)
        damaged = self._different(self._files, say)
        if not damaged:
            return
        for file in damaged:
            say(f"{file.path} differs from its checksum; downloading it again")
            self._journal.forget(file.path)
            progress.add(-file.size)
        self._fetch([piece for file in damaged for piece in self._pieces[file.path]], progress)
        if still := self._different(damaged, say):
            for file in still:
                self._journal.forget(file.path)
            assert still[0].checksum is not None
            raise DamagedFile(
                f"{still[0].path} was downloaded twice, and its {still[0].checksum.algorithm} is not "
                f"{still[0].checksum.digest}: upload it again, and check the disk and the proxies on the way"
            )

    def _has(self, piece: _Piece) -> bool:
        path = self._directory / piece.file.path
        return self._journal.has(piece.file.path, piece.start, piece.end) and path.is_file()

    def _fetch(self, pieces: Sequence[_Piece], progress: _Progress) -> None:
        queue: SimpleQueue[_Piece] = SimpleQueue()
        outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        missing = [piece for piece in pieces if not self._has(piece)]
        for piece in missing:
            queue.put(piece)
        # Daemon threads, because a process that is told to end must not wait for a slow store.
        threads = [
            Thread(target=self._work, args=(queue, outcomes, progress), daemon=True)
            for _ in range(min(CONNECTIONS, len(missing)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in missing:
                if (error := outcomes.get()) is not None:
                    raise error
        finally:
            self._stop.set()
        for thread in threads:
            thread.join()
        self._stop.clear()

    def _work(
        self,
        queue: "SimpleQueue[_Piece]",
        outcomes: "SimpleQueue[BaseException | None]",
        progress: _Progress,
    ) -> None:
        while not self._stop.is_set():
            try:
                piece = queue.get_nowait()
            except Empty:
                return
            try:
                self._fetch_piece(piece, progress)
            except OSError as error:
                outcomes.put(unwritable(error, self._directory))
            except BaseException as error:
                outcomes.put(error)
            else:
                outcomes.put(None)

    def _fetch_piece(self, piece: _Piece, progress: _Progress) -> None:
        path = self._directory / piece.file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            self._fill(descriptor, piece, progress)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._journal.add_piece(piece.file.path, piece.start, piece.end)

    def _fill(self, descriptor: int, piece: _Piece, progress: _Progress) -> None:
        offset, failures = piece.start, 0
        while offset < piece.end:
            begun = offset
            try:
                for chunk in self._store.read(piece.file, offset, piece.end):
                    if self._stop.is_set():
                        raise Interrupted("the download was stopped")
                    write_all(descriptor, chunk, offset)
                    offset += len(chunk)
                    progress.add(len(chunk))
                if offset < piece.end:
                    raise Interrupted(f"{piece.file.path} ended early")
            except Interrupted:
                failures = failures + 1 if offset == begun else 1
                if self._stop.is_set() or failures >= ATTEMPTS:
                    progress.add(piece.start - offset)
                    raise
                longest = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)
                self._stop.wait(longest * (0.5 + random.random() / 2))

    def _different(self, files: Sequence[RemoteFile], say: Callable[[str], None]) -> list[RemoteFile]:
        """Return the files that differ from their checksums, and record the others."""
        different, unknown = [], []
        new = [file for file in files if not self._journal.is_whole(file.path)]
        with ThreadPoolExecutor(HASHING_THREADS) as threads:
            outcomes = list(threads.map(self._verdict, new))
        for file, outcome in zip(new, outcomes, strict=True):
            if outcome == "different":
                different.append(file)
                continue
            if outcome == "unknown":
                unknown.append(file.path)
            self._journal.add_whole(file.path)
        if unknown:
            say(f"the store states no checksum that could be compared for {', '.join(unknown)}")
        return different

    def _verdict(self, file: RemoteFile) -> Verdict:
        path = self._directory / file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            return verdict(path, file.checksum) if path.stat().st_size == file.size else "different"
        except OSError as error:
            raise unwritable(error, self._directory) from error


def _pieces(store: RemoteStore, file: RemoteFile) -> list[_Piece]:
    if file.size > PIECE_BYTES and not store.is_divisible(file):
        return [_Piece(file, 0, file.size)]
    return [
        _Piece(file, start, min(start + PIECE_BYTES, file.size)) for start in range(0, file.size, PIECE_BYTES)
    ]


def write_all(descriptor: int, chunk: bytes | memoryview, offset: int) -> None:
    """Write a chunk at an offset of a file. Raises OSError."""
    view = memoryview(chunk)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def unwritable(error: OSError, directory: Path) -> RemoteError:
    """Return the error for a disk that refuses to be written."""
    advice = "free disk space" if error.errno in _NO_SPACE else "check its owner and its free space"
    return FullDisk(f"{directory} cannot be written: {error.strerror}: {advice}", directory.name)
