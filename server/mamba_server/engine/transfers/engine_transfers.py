"""`EngineTransfers`: all states that move into and out of one engine, as its core uses them.

The core calls it between two steps. It holds the exports, the imports and the sessions, and, where the engine
has them, the transfer server and the tier below the arena.
"""

import threading
from collections.abc import Callable

from mamba_server.cache import ManagedStateCache, Reception, Tokens
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.transfers.bundle_memory import Buffers
from mamba_server.engine.transfers.exporter import Exporter
from mamba_server.engine.transfers.importer import Importer, ReadResult, StateSource
from mamba_server.engine.transfers.sessions import Sessions
from mamba_server.engine.transfers.tier import Tier
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_server.wire import Fetch, HandOver

ReadState = Callable[[Fetch, Tokens, str, Reception, Buffers, float, threading.Event], ReadResult]
"""Reads a state from another engine: source, prefix, salt, reception, buffers, deadline, cancellation."""

SAVE_SECONDS = 3.0
"""Seconds in which an engine that ends writes its checkpoints to disk; the API process kills it after 5."""


class EngineTransfers:
    """Transfers of one engine.

    `read_peer` is None where the engine has no transfer server; `tier` is None without tiers. `step`: returns
    the number of the next step.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        importer: Importer,
        counts: TransferCounts,
        step: Callable[[], int],
        exporter: Exporter,
        sessions: Sessions,
        *,
        read_peer: ReadState | None = None,
        tier: Tier | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._cache, self._importer, self._step, self._close = cache, importer, step, close
        self.counts = counts
        self.exporter, self.sessions = exporter, sessions
        self._read_peer, self.tier = read_peer, tier
        if tier is not None:
            cache.on_eviction(tier.on_eviction)

    # --- by the core ---------------------------------------------------------------------------------

    def expect(self, group: list[Sequence], fetch: Fetch | None) -> bool:
        """Begin to fetch the state of the group's prompt; return False if it cannot or need not come."""
        sequence = group[0]
        is_read = sequence.prompt_logprobs is not None or sequence.params.pooling == "mean"
        if is_read or (fetch is None and self.tier is None):
            return False
        token_ids, salt = sequence.known_token_ids(), sequence.salt
        match = self._cache.match(token_ids, salt, self._step())
        source = None
        if fetch is not None and self._read_peer is not None:
            if fetch.depth >= len(token_ids) or fetch.depth % self._cache.capacity.page_size:
                self.counts.record(
                    "in", "refused", 0, 0.0, depth=fetch.depth, peer=f"{fetch.address} (depth)"
                )
            elif fetch.depth > match.resumable:
                source = self._peer(fetch, token_ids[: fetch.depth], salt)
        if source is None and self.tier is not None:
            source = self.tier.source_of(token_ids, salt, match)
        if source is None:
            return False
        self._importer.expect(group, source)
        return True

    def _peer(self, fetch: Fetch, prefix: Tokens, salt: str) -> StateSource:
        read_peer = self._read_peer
        assert read_peer is not None

        def read(
            reception: Reception, buffers: Buffers, deadline: float, cancelled: threading.Event
        ) -> ReadResult:
            return read_peer(fetch, prefix, salt, reception, buffers, deadline, cancelled)

        return StateSource("peer", "in", fetch.depth, read, fetch.address)

    def bring(
        self, fetch: Fetch, prefix: Tokens, salt: str, *, deadline: float, ended: Callable[[str], None]
    ) -> None:
        """Bring in a state of another engine for which no request waits; `ended` gets the outcome."""
        self._importer.bring(prefix, salt, self._peer(fetch, prefix, salt), deadline=deadline, ended=ended)

    def arrived(self) -> list[list[Sequence]]:
        """Return the groups whose state has come or will not come. Called once before each step."""
        self.exporter.poll(self._step())
        self.sessions.poll()
        if self.tier is not None:
            self.tier.poll()
        return self._importer.poll(self._step())

    def cancel(self, request_id: str) -> None:
        """Give up the state for a request that has ended."""
        self._importer.cancel(request_id)

    def export(self, token_ids: Tokens, salt: str) -> HandOver:
        """Keep the deepest state of a prompt for the engine that is to fetch it."""
        return self.exporter.export(token_ids, salt, self._step())

    def release(self, export: str) -> bool:
        """End an export that nobody has opened; return whether there was one."""
        return self.exporter.release(export)

    # --- by the loop ---------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """Number of changes of the cache's memory by transfers."""
        return self.counts.changes

    def counters(self) -> dict[str, float]:
        """Return the counters by metric name."""
        return self.counts.counters()

    def take_seconds(self) -> list[tuple[str, float]]:
        """Return and clear direction and seconds of the transfers that ended."""
        return self.counts.take_seconds()

    def gauges(self) -> dict[str, float]:
        """Return the gauges by metric name."""
        capacity = self._cache.capacity
        gauges: dict[str, float] = {
            "transfer_receiving": capacity.receiving,
            "transfer_exported": capacity.exported,
            "transfer_quarantined": capacity.quarantined,
        }
        if self._read_peer is not None:
            room = (capacity.free_slots + capacity.evictable_slots) // (1 + capacity.slots_per_sequence)
            gauges["transfer_credits"] = max(0, min(self._importer.places, room))
        return gauges

    def close(self, *, save: bool) -> None:
        """Stop the server, the reads and the store. `save`: write the arena's checkpoints to disk first."""
        self._close()
        self.sessions.close()
        self._importer.close()
        if self.tier is not None:
            if save and self.tier.outlives_process:
                self.tier.save(self._cache.checkpoints(), SAVE_SECONDS)
            self.tier.store.close()
