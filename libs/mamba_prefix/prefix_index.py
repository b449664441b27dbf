"""`PrefixIndex`: a gateway's local copy of which prefixes each engine has cached. No I/O, no waiting.

`Follower` (from Redis) or `DirectFeed` (from the engines) fills it, and routing reads it. The copy is a hint:
an engine matches a prompt against its own tree again.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mamba_prefix.engine_banks import MAX_ENGINES, EngineBanks
from mamba_prefix.messages import Change, Heartbeat, Snapshot
from mamba_prefix.page_chain import Hashes, PageChain, PageTerms
from mamba_prefix.page_rungs import rungs
from mamba_prefix.prefix_table import ENGINES_PER_TABLE
from mamba_prefix.recent_gains import MAX_HASHES, MAX_HASHES_OF_LATER_ENGINES, RecentGains

State = Literal["off", "following", "stale", "unavailable"]
RefusedKind = Literal["engine", "heartbeat", "snapshot", "batch"]
ChangeResult = Literal["taken", "old", "gap"]
MOST_ENTRIES = 4 << 20
"""Largest number of hashes of each kind in the copy: about 140 MB."""
ENTRY = np.dtype([("hash", "<u8"), ("depth", "<u4")])
"""A checkpoint: the hash of its prefix, and the number of tokens in it. 12 bytes."""
Entries = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Depths:
    """How many tokens of one prompt each engine has cached, by name; engines without any are left out."""

    resumable: Mapping[str, int]
    """Tokens that the engine can resume, always fewer than the prompt has."""
    pages: Mapping[str, int]
    """Tokens whose attention pages the engine has, rounded down to a rung: at most an eighth too few."""
    revision: int = field(default=0, compare=False)
    """Revision of the index that gave the answer; rises with each change."""


NOTHING = Depths({}, {})


@dataclass(frozen=True, slots=True)
class EngineView:
    """The state of one engine, as far as the index knows it."""

    fingerprint: str
    page_size: int
    incarnation: str
    epoch: int
    """Number that rises when everything published before is void."""
    entries: int
    """Number of checkpoints."""
    pages: int
    """Number of rungs whose attention pages are cached."""
    fresh: bool
    """Whether everything that the engine published has been applied, as far as is known; False = entries may
    be missing or stale."""
    seq: int = 0
    """Number of the last batch that was applied."""


class PrefixIndex:
    """A gateway's copy of what the engines have cached. `state` says how far the copy can be trusted.

    off = the copy has no source; following = complete; stale = batches of an engine are missing; unavailable
    = the source is unreachable, and the copy holds the last known entries. `most_entries` and `most_engines`
    bound it, and `wall` returns seconds since 1970.
    """

    def __init__(
        self,
        most_entries: int = MOST_ENTRIES,
        *,
        off: bool = False,
        most_engines: int = MAX_ENGINES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self.lag = 0.0
        """Seconds from the creation of the last batch to its arrival, by both machines' clocks."""
        self.state: State = "off" if off else "unavailable"
        self.redis_up: bool | None = None
        """Whether Redis is followed; None = no Redis is configured."""
        self.refused_entries = 0
        """Number of checkpoints and pages that were left out because the index was full."""
        self.refused_engines: set[str] = set()
        """Engines for which there was no room; routing knows nothing of their caches."""
        self.refused_messages: Counter[RefusedKind] = Counter()
        """Number of messages of the source that were too large or too many, by kind."""
        self.gaps = 0
        """Number of times at which batches of an engine were found missing."""
        self.snapshots = 0
        """Number of snapshots read."""
        self.failures = 0
        """Number of failures of the source."""
        self._table = EngineBanks(most_entries)
        self._pages = EngineBanks(most_entries)
        self._views: dict[str, EngineView] = {}
        self._numbers: dict[str, int] = {}
        self._names = [""] * most_engines
        """Engine names by engine number."""
        # The lowest numbers are used first, so that few engines need few tables.
        self._free = list(range(most_engines))[::-1]
        self._revision = 0
        self._gains = [
            RecentGains(MAX_HASHES if number < ENGINES_PER_TABLE else MAX_HASHES_OF_LATER_ENGINES)
            for number in range(most_engines)
        ]
        """Hashes that each engine has recently gained, by engine number."""
        self._chains: dict[tuple[str, int], PageChain] = {}

    # --- queries of routing --------------------------------------------------------------------------

    def engines(self) -> Mapping[str, EngineView]:
        """Return the state of each engine that the index knows, by its name."""
        return self._views

    def depths(self, token_ids: npt.NDArray[np.int32], salt: str, terms: PageTerms | None = None) -> Depths:
        """Return how many tokens of a prompt each engine has cached. `terms` are those of `token_ids`."""
        resumable: dict[str, int] = {}
        pages: dict[str, int] = {}
        names = self._names
        terms = terms or PageTerms(token_ids)
        for (_, page_size), chain in self._chains.items():
            # The last token has to be computed: a checkpoint at the very end is useless.
            whole_pages = max(0, len(token_ids) - 1) // page_size
            hashes = chain.hashes_of_terms(terms.of(chain)[:whole_pages], salt)
            if len(hashes):
                for number, count in self._table.depths(hashes).items():
                    resumable[names[number]] = count * page_size
                rung_pages = rungs(0, len(hashes))
                for number, count in self._pages.depths(hashes[rung_pages - 1]).items():
                    pages[names[number]] = int(rung_pages[count - 1]) * page_size
        return Depths(resumable, pages, self._revision)

    @property
    def entries(self) -> int:
        """Number of prefixes that any engine can resume."""
        return self._table.entries

    @property
    def bytes(self) -> int:
        """Memory of the tables in bytes."""
        return self._table.bytes + self._pages.bytes

    @property
    def pages(self) -> int:
        """Number of prefixes, at the rungs of prompts, whose attention pages an engine has."""
        return self._pages.entries

    # --- corrections by answers ----------------------------------------------------------------------

    def withdraw(
        self, engine: str, token_ids: npt.NDArray[np.int32], salt: str, resumed: int, published: Depths
    ) -> bool:
        """Remove entries of a prompt of which `engine` had less cached than `published` says.

        Entries deeper than `resumed` tokens are removed until the engine publishes them again. Return whether
        any were removed. None are if the engine is unknown, if the entries are gone or newer than
        `published`, or if the index no longer knows which are newer.
        """
        number, view = self._numbers.get(engine), self._views.get(engine)
        if number is None or view is None or view.page_size <= 0:
            return False
        gained = self._gains[number].after(published.revision)
        if gained is None:
            return False
        chain = self._chains[view.fingerprint, view.page_size]
        hashes = chain.hashes(token_ids[: published.resumable.get(engine, 0)], salt)[
            resumed // view.page_size :
        ]
        before = self._table.count(number)
        self._table.remove(number, np.setdiff1d(hashes, gained))
        entries = self._table.count(number)
        self._views[engine] = replace(view, entries=entries)
        return entries < before

    # --- updates by feeds ----------------------------------------------------------------------------

    def admits(self, engine: str) -> bool:
        """Return whether the index has a number for the engine; if not, add it to `refused_engines`."""
        if engine in self._numbers or self._free:
            return True
        self.refused_engines.add(engine)
        return False

    def take_snapshot(self, message: Snapshot) -> bool:
        """Replace all entries of an engine. Return False if there is no room for the engine."""
        number = self._number(message.engine)
        if number is None:
            return False
        self._revision += 1
        self._clear(number)
        self._add(number, entries_of(message.entries)["hash"], hashes_of(message.pages))
        self.snapshots += 1
        self._views[message.engine] = EngineView(
            message.fingerprint, message.page_size, message.incarnation, message.epoch,
            self._table.count(number), self._pages.count(number), fresh=True, seq=message.seq,
        )  # fmt: skip
        self._keep_chains()
        return True

    def take_change(self, message: Change) -> ChangeResult:
        """Apply a batch of an engine.

        The result "gap" says that an earlier batch is missing and a snapshot is needed.
        """
        view = self._views.get(message.engine)
        if view is None:
            return "gap"
        same = view.incarnation == message.incarnation
        if same and message.seq <= view.seq:
            return "old"
        if not message.cleared and not (same and message.seq == view.seq + 1):
            self.doubt(message.engine)
            return "gap"
        number = self._numbers[message.engine]
        self._revision += 1
        if message.cleared:
            self._clear(number)
        # Losses first: a hash that is lost and gained within one batch is in both only after a collision.
        self._table.remove(number, np.unique(hashes_of(message.lost)))
        self._pages.remove(number, np.unique(hashes_of(message.pages_lost)))
        self._add(number, entries_of(message.gained)["hash"], hashes_of(message.pages_gained))
        self._views[message.engine] = replace(
            view, incarnation=message.incarnation, epoch=message.epoch, seq=message.seq,
            entries=self._table.count(number), pages=self._pages.count(number), fresh=True,
        )  # fmt: skip
        self.lag = max(0.0, self._wall() - message.at)
        return "taken"

    def matches(self, beat: Heartbeat) -> bool:
        """Return whether the copy has everything that the engine had published by this heartbeat."""
        view = self._views.get(beat.engine)
        return (
            view is not None
            and view.fresh
            and view.incarnation == beat.incarnation
            and view.seq >= beat.seq
            and (view.fingerprint, view.page_size) == (beat.fingerprint, beat.page_size)
        )

    def has_run(self, engine: str, incarnation: str) -> bool:
        """Return whether the entries of `engine` are those of its process `incarnation`."""
        view = self._views.get(engine)
        return view is not None and view.incarnation == incarnation

    def doubt(self, engine: str, *, again: bool = False) -> None:
        """Mark the entries of `engine` as incomplete.

        `again` says that the missing batch is counted already.
        """
        view = self._views.get(engine)
        if view is not None and view.fresh:
            self.gaps += not again
            self._views[engine] = replace(view, fresh=False)

    def drop(self, engine: str) -> None:
        """Remove an engine that is gone, with all its entries."""
        self.refused_engines.discard(engine)
        if self._views.pop(engine, None) is None:
            return
        number = self._numbers.pop(engine)
        self._revision += 1
        self._clear(number)
        self._free.append(number)
        self._free.sort(reverse=True)
        self._keep_chains()

    def hashes_of(self, engine: str) -> npt.NDArray[np.uint64]:
        """Return the prefixes that this engine can resume, in no order."""
        number = self._numbers.get(engine)
        return np.empty(0, np.uint64) if number is None else self._table.of(number)

    def pages_of(self, engine: str) -> npt.NDArray[np.uint64]:
        """Return the rungs of prompts whose attention pages this engine has, in no order."""
        number = self._numbers.get(engine)
        return np.empty(0, np.uint64) if number is None else self._pages.of(number)

    def _number(self, engine: str) -> int | None:
        if engine in self._numbers:
            return self._numbers[engine]
        if not self.admits(engine):
            return None
        self.refused_engines.discard(engine)
        self._numbers[engine] = number = self._free.pop()
        self._names[number] = engine
        return number

    def _add(self, number: int, checkpoints: Hashes, pages: Hashes) -> None:
        checkpoints = np.unique(checkpoints)
        self._gains[number].add(self._revision, checkpoints)
        self.refused_entries += self._table.add(number, checkpoints)
        self.refused_entries += self._pages.add(number, np.unique(pages))

    def _clear(self, number: int) -> None:
        self._table.clear(number)
        self._pages.clear(number)
        self._gains[number].begin(self._revision)

    def _keep_chains(self) -> None:
        """Keep one `PageChain` for each model and page size that engines have; usually there is one."""
        kinds = {(view.fingerprint, view.page_size) for view in self._views.values()}
        self._chains = {
            key: self._chains.get(key) or PageChain(key[1], key[0]) for key in kinds if key[1] > 0
        }


def entries_of(raw: bytes) -> Entries:
    """Return the entries that `pack_entries` packed, as `ENTRY` items."""
    return np.frombuffer(raw, ENTRY)


def hashes_of(raw: bytes) -> Hashes:
    """Return the hashes that `pack_hashes` packed."""
    return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False)
