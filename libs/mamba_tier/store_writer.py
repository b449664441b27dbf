"""`StoreWriter`: the only thread that fills the tiers; it computes checksums, evicts, and writes files.

The thread takes bundles that `BundleStore.put` has copied into the pool of the host tier and adds them to the
host tier. What then exceeds the budget of the host tier moves to disk. A bundle for which there is no room is
dropped. The writer never waits for a reader.
"""

import threading
from collections import Counter, deque
from dataclasses import dataclass

import structlog

from mamba_tier.bundle_shape import BundleShape
from mamba_tier.byte_row import ByteRow, checksum
from mamba_tier.disk_tier import DiskTier
from mamba_tier.host_tier import HostTier
from mamba_tier.items import Item, Record, let_go
from mamba_tier.record_header import packed, parts

log = structlog.get_logger("mambaserve.tier")
IDLE_SECONDS = 5.0
"""Longest time, in seconds, that an idle writer waits before it looks for work again."""


@dataclass(slots=True, eq=False)
class StagedBundle:
    """A bundle whose bytes wait in the pool to be stored: its record, and the blocks that no tier has."""

    record: Record
    blocks: list[Item]
    digests: dict[int, bytes]
    """Digest of each block of the record's prefix, by chain hash."""
    shallower: list[int]
    """Chain hashes of the shorter prefixes of the same tokens, the longest first."""
    wrong: bool = False
    """Whether the bundle was withdrawn before a tier had it."""


class StoreWriter:
    """Stores waiting bundles and moves records to disk, in a thread; shares the store's lock and tiers.

    With `sync`, each file is forced to the device.
    """

    def __init__(
        self,
        shape: BundleShape,
        host: HostTier,
        disk: DiskTier | None,
        lock: threading.RLock,
        counters: Counter[str],
        *,
        sync: bool,
    ) -> None:
        self._shape, self._host, self._disk, self._sync = shape, host, disk, sync
        self._counters = counters
        self._queue: deque[StagedBundle] = deque()
        self._current: list[StagedBundle] = []
        """Bundle that the thread adds to the host tier, if any."""
        self.records: dict[int, bytes] = {}
        """Digest of each record that waits to be stored, by chain hash."""
        self.blocks: dict[int, bytes] = {}
        """Digest of each block that waits to be stored, by chain hash."""
        self._changed = threading.Condition(lock)
        self._closing, self._busy, self._saving = False, False, False
        self._thread = threading.Thread(target=self._run, name="bundle-writer", daemon=True)

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of bundles that wait to be stored."""
        return len(self._queue) + self._busy

    def reserve(self, bundle: StagedBundle) -> None:
        """Announce a bundle, so that no other put copies it meanwhile. The caller holds the store's lock."""
        self.records[bundle.record.key] = bundle.record.digest
        self.blocks.update((block.key, block.digest) for block in bundle.blocks)

    def release(self, bundle: StagedBundle) -> None:
        """Withdraw the announcement of a bundle. The caller holds the store's lock."""
        self.records.pop(bundle.record.key, None)
        for block in bundle.blocks:
            self.blocks.pop(block.key, None)

    def add(self, bundle: StagedBundle) -> None:
        """Queue a bundle whose bytes are in the pool. The caller holds the store's lock."""
        self._queue.append(bundle)
        self._changed.notify_all()

    def withdraw(self, key: int, block: int | None) -> None:
        """Do not store the record with the key `key`, nor records that need the block with the key `block`.

        This includes the bundle that is being stored now. The caller holds the store's lock.
        """
        for bundle in (*self._queue, *self._current):
            record = bundle.record
            bundle.wrong = bundle.wrong or record.key == key or block in record.block_keys

    def wake(self) -> None:
        """Wake the writer, so that it removes files of dropped items. The caller holds the store's lock."""
        self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until the writer is idle; return False if it is still busy after `seconds`."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def save(self, seconds: float) -> bool:
        """Move all records of the host tier to disk; return False if not all were moved within `seconds`."""
        with self._changed:
            if self._disk is None or not self._disk.on:
                return False
            self._saving, self._host.budget_bytes = True, 0
            self._changed.notify_all()
            return self._changed.wait_for(self._is_idle, seconds) and self._disk.on

    def close(self) -> None:
        """Stop the thread once it has written the record that it is writing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _is_idle(self) -> bool:
        removals = self._disk is not None and self._disk.has_removals
        unsaved = self._saving and bool(self._host.records)
        return self._closing or not (self._queue or self._busy or removals or unsaved)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
            seconds = 0.0 if self._host.pool.touch_more() else IDLE_SECONDS
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not self._is_idle(), seconds)
                if self._closing:
                    return
                self._busy = True
                bundle = self._queue.popleft() if self._queue else None
                self._current = [] if bundle is None else [bundle]
            try:
                if bundle is not None:
                    self._publish(bundle)
                self._lower_host()
                if self._disk is not None:
                    self._disk.remove_files()
            except OSError as error:
                self.switch_off(error)
            except Exception:
                log.exception("the store of bundles is off until the next start: its writer failed")
                self._stop_all()
                return

    def _stop_all(self) -> None:
        with self._changed:
            self._closing, self._busy = True, False
            self._queue.clear()
            self._host.reason = "the writer failed"
            self._host.clear()
            if self._disk is not None:
                self._disk.switch_off(self._host.reason)
            self._changed.notify_all()

    def switch_off(self, error: OSError) -> None:
        """Switch the disk tier off until the next start, and log the reason. Any thread may call this."""
        with self._changed:
            disk = self._disk
            if disk is None or not disk.on:
                return
            reason = error.strerror or type(error).__name__
            disk.switch_off(reason)
        log.error("the disk tier is off until the next start", reason=reason, file=error.filename)

    def _publish(self, bundle: StagedBundle) -> None:
        """Add a bundle to the index of the host tier, so that lookups find it."""
        record = bundle.record
        for item in (*bundle.blocks, record):
            item.sums = self._sums(item)
        with self._changed:
            self._current = []
            if bundle.wrong:
                self.release(bundle)
                self._host.give_back((*bundle.blocks, record))
                return
            record.tokens = record.depth - self._depth_above(bundle)
            for block in bundle.blocks:
                self._host.add_block(block)
            tiers = (self._host,) if self._disk is None else (self._host, self._disk)
            for key in record.block_keys:
                candidates = [tier.blocks[key] for tier in tiers if key in tier.blocks]
                stored = [candidate for candidate in candidates if candidate.digest == bundle.digests[key]]
                if stored:
                    stored[0].references += 1
                    record.blocks.append(stored[0])
            if self._disk is not None and (older := self._disk.records.get(record.key)) is not None:
                self._disk.drop(older)
            self._host.add_record(record)
            self.release(bundle)
            self._counters["stored"] += 1

    def _depth_above(self, bundle: StagedBundle) -> int:
        """Return the depth of the longest shorter prefix of the bundle's tokens that has a stored record."""
        for steps, key in enumerate(bundle.shallower, 1):
            if key in self._host.records or (self._disk is not None and key in self._disk.records):
                return bundle.record.depth - steps * self._shape.page_size
        return 0

    def _payload_bytes(self, item: Item) -> int:
        state = self._shape.state_bytes if isinstance(item, Record) else 0
        return state + self._shape.pages_bytes(item.depth - item.first)

    def _sums(self, item: Item) -> bytes:
        total = self._payload_bytes(item)
        row = ByteRow(self._host.views(item, total))
        spans = parts(self._shape, item.depth - item.first, is_record=isinstance(item, Record))
        return packed([checksum(row.cut(part.start, part.length)) for part in spans])

    def _lower_host(self) -> None:
        """Move records to disk until the host tier is within its budget."""
        while True:
            with self._changed:
                if self._closing or self._host.used_bytes <= self._host.budget_bytes:
                    return
                # An engine that ends may lack the time to save all: the most valuable records come first.
                victim = self._host.best() if self._saving else self._host.victim()
                if victim is None:
                    return
                # The writer reads the bytes of the record, so it holds a reference until it has moved them.
                victim.references += 1
            try:
                if self._disk is not None and self._disk.on:
                    self._move(victim, self._disk)
            finally:
                with self._changed:
                    let_go(victim)
                    self._host.drop(victim)
                    self._host.evictions += 1

    def _move(self, victim: Record, disk: DiskTier) -> None:
        """Write a record of the host tier to disk, with its blocks that are not there. Raises OSError."""
        headers: dict[Item, tuple[bytes, int]] = {}
        blocks: list[Item] = []
        with self._changed:
            for block in victim.blocks:
                present = disk.blocks.get(block.key)
                if present is not None and present.digest == block.digest:
                    present.references += 1
                    blocks.append(present)
                elif not block.gone:
                    headers[block] = disk.prepare(block)
            headers[victim] = disk.prepare(victim)
            if not disk.make_room(sum(cost for _, cost in headers.values())):
                self._counters["no_room"] += 1
                for block in blocks:
                    let_go(block)
                return
        try:
            # Space is made in the budget before the first byte is written.
            disk.remove_files()
            for item, (header, cost) in headers.items():
                payload = self._host.views(item, self._payload_bytes(item))
                stored = disk.write(item, header, payload, cost, sync=self._sync)
                with self._changed:
                    if not disk.on:
                        return
                    if isinstance(stored, Record):
                        stored.blocks, blocks = blocks, []
                        _add_record(disk, stored, is_wanted=not victim.gone)
                        self._counters["demoted"] += 1
                        self._counters["demoted_bytes"] += sum(cost for _, cost in headers.values())
                    else:
                        stored.references += 1
                        disk.add_block(stored)
                        blocks.append(stored)
        finally:
            with self._changed:
                for block in blocks:
                    let_go(block)


def _add_record(disk: DiskTier, stored: Record, *, is_wanted: bool) -> None:
    """Add a record; drop it if it was withdrawn, or stored anew, while its bytes were written."""
    disk.add_record(stored)
    if not is_wanted:
        disk.drop(stored)
