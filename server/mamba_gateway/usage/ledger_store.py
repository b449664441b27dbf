"""`LedgerStore`: where the entries of a ledger are kept, and `MemoryLedger`, the store of one gateway.

An entry is the total of one engine process for one day, model, key and adapter, with a revision. Storing an
entry replaces an older one and changes nothing otherwise, so nothing is counted twice by whoever reports
twice. The memory store can have a file, from which it goes on after a restart.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from mamba_edge.usage.usage_sum import UsageFeed, UsageSum

log = structlog.get_logger("mambaserve.gateway")

SAVE_SECONDS = 2.0
"""Seconds between two writes of the file."""


class UsageFileError(ValueError):
    """The file of the ledger cannot be read or written; the message names it."""


class LedgerEntry(msgspec.Struct, array_like=True, frozen=True):
    """Total of one engine process for one day, model, key and adapter."""

    incarnation: str
    model: str
    key: str
    adapter: str
    revision: int
    total: UsageSum


class LedgerStore(Protocol):
    """Store of the entries of a ledger."""

    async def put(self, feed: UsageFeed) -> None:
        """Keep the entries that an engine reports, where they are newer. Raises LedgerAway."""

    async def entries(self, days: Sequence[str]) -> list[tuple[str, LedgerEntry]]:
        """Return the entries of these days, each with its day. Raises LedgerAway."""

    async def close(self) -> None:
        """Close the files and connections of the store."""


class _LedgerFile(msgspec.Struct):
    """The file of a memory store."""

    version: int
    days: dict[str, list[LedgerEntry]]


class MemoryLedger:
    """Entries of one gateway, in memory, for the last `days` days.

    `path` is the file to which they are saved; None if they are lost with the process.
    """

    def __init__(self, days: int, path: Path | None = None) -> None:
        """Read the file, if it is there. Raises UsageFileError."""
        self._most_days, self._path = days, path
        self._days: dict[str, dict[tuple[str, str, str, str], LedgerEntry]] = {}
        self._unsaved = False
        if path is not None:
            self._load(path)

    async def put(self, feed: UsageFeed) -> None:
        """Keep the entries that an engine reports, where they are newer."""
        for entry in feed.entries:
            names = feed.incarnation, feed.model, entry.key, entry.adapter
            if self._keep(entry.day, LedgerEntry(*names, entry.revision, entry.total)):
                self._unsaved = True
        self._forget()

    def _keep(self, day: str, entry: LedgerEntry) -> bool:
        """Keep an entry if it is new, and return whether it is."""
        names = entry.incarnation, entry.model, entry.key, entry.adapter
        entries = self._days.setdefault(day, {})
        before = entries.get(names)
        if before is not None and before.revision >= entry.revision:
            return False
        entries[names] = entry
        return True

    def _forget(self) -> None:
        for day in sorted(self._days)[: -self._most_days]:
            del self._days[day]

    async def entries(self, days: Sequence[str]) -> list[tuple[str, LedgerEntry]]:
        """Return the entries of these days, each with its day."""
        return [(day, entry) for day in days for entry in self._days.get(day, {}).values()]

    async def close(self) -> None:
        """Write the file for the last time."""
        try:
            self._save()
        except UsageFileError as error:
            log.error("usage_not_saved", reason=str(error))

    async def work(self) -> None:
        """Write the file whenever something has changed, until the task is cancelled."""
        complaint = ""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                self._save()
                complaint = ""
            except UsageFileError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.error("usage_not_saved", reason=complaint)

    def _load(self, path: Path) -> None:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageFileError(f"--usage-file: {path}: {error.strerror}") from error
        try:
            stored = msgspec.json.decode(text, type=_LedgerFile)
        except msgspec.DecodeError as error:
            raise UsageFileError(
                f"--usage-file: {path} is no ledger of a gateway ({error}); move it away to begin a new one"
            ) from error
        for day, entries in stored.days.items():
            for entry in entries:
                self._keep(day, entry)
        self._forget()

    def _save(self) -> None:
        """Replace the file as a whole, and keep the entries that another gateway has written.

        Raises UsageFileError.
        """
        if self._path is None or not self._unsaved:
            return
        self._load(self._path)
        days = {day: list(entries.values()) for day, entries in sorted(self._days.items())}
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(msgspec.json.encode(_LedgerFile(1, days)))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise UsageFileError(f"--usage-file: {self._path}: {error.strerror}") from error
        self._unsaved = False


def field_of(entry: LedgerEntry) -> str:
    """Return the text that names an entry within its day."""
    return json.dumps([entry.incarnation, entry.model, entry.key, entry.adapter], separators=(",", ":"))
