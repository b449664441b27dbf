"""`EngineTransfers`: all transfers of states to and from one engine, as the core of the engine uses them.

The core calls it between two steps. It owns the exports, the imports and the saved sessions. If the settings
ask for them, it also owns the transfer server and the tiers below the arena.
"""

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mamba_planner.arithmetic import prefill_work
from mamba_planner.strategy import receptions_within
from mamba_server.cache import ManagedStateCache, Quarantined, Reception, Tokens
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.stepping.prefill_speed import PrefillSpeed
from mamba_server.engine.transfers.bandwidth import MIN_CHOICE_SECONDS
from mamba_server.engine.transfers.bundle_memory import Buffers
from mamba_server.engine.transfers.exporter import Exporter
from mamba_server.engine.transfers.heir import Heir
from mamba_server.engine.transfers.importer import Importer, ReadResult, StateSource
from mamba_server.engine.transfers.sessions import Sessions
from mamba_server.engine.transfers.tier import Tier
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_server.wire import Fetch, HandOver
from mamba_transfer import HotPrefix
from mamba_transfer.bundle import bundle_bytes
from mamba_transfer.layout import StateLayout

SAVE_SECONDS = 3.0
"""Seconds that an engine has at its end to write checkpoints to disk. The API process kills the engine after
5."""


class PeerStates(Protocol):
    """Reads states from other engines, or gives up those that are not needed any more."""

    def read(
        self,
        fetch: Fetch,
        prefix: Tokens,
        salt: str,
        reception: Reception,
        buffers: Buffers,
        deadline: float,
        cancelled: threading.Event,
    ) -> ReadResult:
        """Fill `buffers` with the state of `prefix` and the pages of the tokens [reception.base, depth).

        Args:
            fetch: address of the other engine, and depth and export of the state.
            prefix: tokens of the state.
            salt: cache salt of the request.
            reception: memory that the buffers belong to.
            buffers: where the bytes are written.
            deadline: latest end, in seconds of the engine's clock.
            cancelled: set if nobody needs the state any more.
        """
        ...

    def give_up(self, fetch: Fetch) -> None:
        """Let the other engine free the export of `fetch`, which is not read. Never waits."""
        ...

    def renew(self, fetch: Fetch) -> None:
        """Let the other engine hold the export of `fetch` for a further lease. Never waits."""
        ...

    def close(self) -> None:
        """Give up and renew no further export."""
        ...


class EngineTransfers:
    """All transfers of states to and from one engine.

    `peers` is None where the engine has no transfer server; `tier` is None without tiers. `step` returns the
    number of the next step. `speed` is the measured speed at which the engine computes prompts. `heir` is
    None where the engine takes over no states; `close` ends what the transfers were created with.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        importer: Importer,
        counts: TransferCounts,
        step: Callable[[], int],
        exporter: Exporter,
        sessions: Sessions,
        speed: PrefillSpeed,
        layout: StateLayout,
        *,
        peers: PeerStates | None = None,
        tier: Tier | None = None,
        heir: Heir | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._cache, self._importer, self._step, self._close = cache, importer, step, close
        self.counts = counts
        self.exporter, self.sessions = exporter, sessions
        self._speed, self._layout = speed, layout
        self._peers, self.tier, self._heir = peers, tier, heir
        if tier is not None:
            cache.on_eviction(tier.on_eviction)

    # --- by the core ---------------------------------------------------------------------------------

    def expect(self, group: list[Sequence], fetch: Fetch | None) -> bool:
        """Begin to fetch the state of the group's prompt.

        Return False if the group need not wait: there is no source, or computing is faster than fetching.
        """
        source = self._source(group[0], fetch)
        if fetch is not None and (source is None or source.kind != "peer"):
            self._give_up(fetch)
        if source is None:
            return False
        self._importer.expect(group, source)
        return True

    def _source(self, sequence: Sequence, fetch: Fetch | None) -> StateSource | None:
        """Return where the state of a prompt is to come from; None = from nowhere."""
        is_read = sequence.prompt_logprobs is not None or sequence.params.pooling == "mean"
        if is_read or (fetch is None and self.tier is None):
            return None
        token_ids, salt = sequence.known_token_ids(), sequence.salt
        match = self._cache.match(token_ids, salt, self._step())
        if fetch is not None and self._peers is not None:
            page_size = self._cache.capacity.page_size
            if fetch.depth >= len(token_ids) or fetch.depth % page_size:
                self.counts.record(
                    "in", "refused", 0, 0.0, depth=fetch.depth, peer=f"{fetch.address} (depth)"
                )
            elif fetch.depth > match.resumable:
                size = bundle_bytes(self._layout, fetch.depth // page_size - match.kv_depth // page_size)
                if fetch.export or self._pays(fetch.depth, match.resumable, size):
                    return self._peer(fetch, token_ids[: fetch.depth], salt, size)
                self.counts.record("in", "slower", 0, 0.0, depth=fetch.depth, peer=fetch.address)
        return self.tier.source_of(token_ids, salt, match) if self.tier is not None else None

    def _pays(self, depth: int, resumable: int, size: int) -> bool:
        """Return whether a peer's state comes sooner than this engine computes it.

        The state of a hand-over was computed for this engine, and is always fetched.
        """
        work = prefill_work(resumable, depth, self._speed.ratio)
        return self._importer.bandwidth.pays(
            "peer", size, work, self._speed.tokens_per_second, least=MIN_CHOICE_SECONDS
        )

    def _peer(self, fetch: Fetch, prefix: Tokens, salt: str, size: int = 0) -> StateSource:
        peers = self._peers
        assert peers is not None

        def read(
            reception: Reception, buffers: Buffers, deadline: float, cancelled: threading.Event
        ) -> ReadResult:
            return peers.read(fetch, prefix, salt, reception, buffers, deadline, cancelled)

        place = f"{fetch.address} {fetch.incarnation}"
        if not fetch.export:
            return StateSource(
                "peer", "in", fetch.depth, read, fetch.address, size=size, origin="peer", place=place
            )
        return StateSource(
            "peer", "in", fetch.depth, read, fetch.address, size=size, origin="hand_over", place=place,
            unread=lambda: peers.give_up(fetch), waits=lambda: peers.renew(fetch),
        )  # fmt: skip

    def _give_up(self, fetch: Fetch) -> None:
        """Let another engine free an export that this one will not read."""
        if fetch.export and self._peers is not None:
            self._peers.give_up(fetch)

    def bring(
        self, fetch: Fetch, prefix: Tokens, salt: str, *, deadline: float, ended: Callable[[str], None]
    ) -> None:
        """Fetch a state from another engine into the cache; `ended` is called with the outcome.

        `deadline` is a time of the engine's clock in seconds.
        """
        self._importer.bring(prefix, salt, self._peer(fetch, prefix, salt), deadline=deadline, ended=ended)

    def arrived(self) -> list[list[Sequence]]:
        """Return the groups that need wait no longer for a state. The core calls this before each step."""
        self.exporter.poll(self._step())
        self.sessions.poll()
        if self.tier is not None:
            self.tier.poll()
        if self._heir is not None:
            self._heir.poll(self._bring_inherited)
        return self._importer.poll(self._step())

    def _bring_inherited(
        self, fetch: Fetch, prefix: HotPrefix, deadline: float, ended: Callable[[str], None]
    ) -> None:
        tokens = np.frombuffer(prefix.token_ids, "<i4").astype(np.int32)
        self.bring(fetch, tokens, prefix.salt, deadline=deadline, ended=ended)

    def cancel(self, request_id: str) -> None:
        """Stop fetching the state for a request that has ended."""
        self._importer.cancel(request_id)

    def export(self, token_ids: Tokens, salt: str) -> HandOver:
        """Keep the deepest checkpoint of a prompt until another engine has fetched it."""
        return self.exporter.export(token_ids, salt, self._step())

    def withdraw(self, quarantined: list[Quarantined]) -> None:
        """Remove copies of wrong checkpoints, and of checkpoints that continue them, from the tiers."""
        if self.tier is not None:
            self.tier.withdraw(quarantined)

    def release(self, export: str) -> bool:
        """End an export that nobody has opened; return whether there was one."""
        released = self.exporter.release(export)
        self.exporter.poll(self._step())
        return released

    # --- by the loop ---------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """Number of changes that transfers have made to the memory of the cache."""
        return self.counts.changes

    def counters(self) -> dict[str, float]:
        """Return the values of the counters by metric name."""
        return self.counts.counters()

    def take_seconds(self) -> list[tuple[str, float]]:
        """Return the direction and the seconds of each transfer that ended since the last call."""
        return self.counts.take_seconds()

    def gauges(self) -> dict[str, float]:
        """Return the values of the gauges by metric name."""
        capacity = self._cache.capacity
        gauges: dict[str, float] = {
            "transfer_receiving": capacity.receiving,
            "transfer_exported": capacity.exported,
            "transfer_quarantined": capacity.quarantined,
        }
        if self._peers is not None:
            unused = capacity.free_slots + capacity.evictable_slots
            room = receptions_within(unused, capacity.receiving, capacity.slots_per_sequence)
            gauges["transfer_credits"] = min(self._importer.places, room)
        return gauges

    def close(self, *, save: bool) -> None:
        """Stop the server, the reads and the store. `save`: first write the arena's checkpoints to disk."""
        self._close()
        if self._peers is not None:
            self._peers.close()
        self.sessions.close()
        self._importer.close()
        if self.tier is not None:
            if save and self.tier.outlives_process:
                self.tier.save(self._cache.checkpoints(), SAVE_SECONDS)
            self.tier.store.close()
