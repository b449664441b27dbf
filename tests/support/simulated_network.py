"""Writers and readers outside the forward stream: bytes land one part at a time, in any order, also late.

A writer fills the memory of one reception with the depth-coded state and the page contents of its prefix. The
state has two parts and each page is one, so that a torn result shows. Each part checks whose memory it hits:
a byte in anybody else's memory is *foreign*. A test decides when a part lands, when a writer ends, and when
its end is seen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from depth_coded import POISON, ZERO, State, after
from mamba_server.cache.arena import PageOwner
from mamba_server.cache.protocol import EvictedCheckpoint, Export, Reception
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.state_cache import RadixStateCache

RUBBISH: State = (-3, -3, (-3, -3, -3))
"""State that a broken source sends."""


class Device(Protocol):
    """Memory that slots and pages name."""

    states: list[State]
    page_ids: np.ndarray


@dataclass(eq=False)
class Writer:
    """Writer of one reception. `parts`: numbers of those that have not landed; 0 and 1 are the state."""

    reception: Reception
    correct: bool
    """Whether its source sends the right bytes."""
    parts: list[int] = field(default_factory=list)
    quarantined: bool = False
    """Whether the reception was given up while the writer may still write."""


@dataclass(eq=False)
class Reader:
    """Reader of one export."""

    export: Export
    tokens: np.ndarray


@dataclass
class Landing:
    """Memory that holds the bytes of one reception: the device itself, or a buffer of the host."""

    states: list[State]
    page_ids: np.ndarray
    slot: int
    pages: np.ndarray


class SimulatedNetwork:
    """Network of one cache. `staged`: bytes land in host memory, and a launch copies them later."""

    def __init__(
        self, cache: RadixStateCache, device: Device, rng: random.Random, *, staged: bool = False
    ) -> None:
        self.cache, self.device, self.rng, self.staged = cache, device, rng, staged
        self.writers: list[Writer] = []
        self.confirmed: list[Writer] = []
        self.readers: list[Reader] = []
        self.buffers: dict[int, Landing] = {}
        self.landed = 0
        """Parts that have landed."""
        self.late = 0
        """Parts that landed after their reception was given up."""
        self.evicted = 0
        """Checkpoints that the eviction listener saw."""
        self.pending = self.refused = self.on_base = 0
        """Installs whose launch was not complete, that the tree did not need, and on pages of the tree."""
        cache.on_eviction(self._evicted)

    @property
    def paged(self) -> bool:
        return self.cache.arena.pages_per_slab > 0

    # --- writers -------------------------------------------------------------------------------------

    def receive(self, tokens: np.ndarray, salt: str, *, correct: bool = True) -> Writer | None:
        """Begin a reception; None = the cache takes none now."""
        reception = self.cache.receive(tokens, salt)
        if reception is None:
            return None
        assert np.array_equal(reception.token_ids, tokens)
        assert (reception.depth - reception.base) == len(reception.pages) * self.cache.page_size
        writer = Writer(reception, correct, list(range(2 + (len(reception.pages) if self.paged else 0))))
        self.rng.shuffle(writer.parts)
        self.writers.append(writer)
        if self.staged:
            count = len(reception.pages)
            self.buffers[reception.number] = Landing(
                [POISON], np.full((max(1, count), self.cache.page_size), -1, np.int32), 0, np.arange(count)
            )
        return writer

    def landing(self, reception: Reception) -> Landing:
        """Return the memory in which the bytes of `reception` land."""
        if self.staged:
            return self.buffers[reception.number]
        return Landing(self.device.states, self.device.page_ids, reception.slot, reception.pages)

    def land(self, writer: Writer) -> None:
        """Let one more part of `writer` land, if there is one."""
        if not writer.parts:
            return
        part, reception = writer.parts.pop(), writer.reception
        self.landed += 1
        self.late += writer.quarantined
        self._assert_own(writer, part)
        place = self.landing(reception)
        new = after(ZERO, reception.token_ids.tobytes()) if writer.correct else RUBBISH
        count, value, window = place.states[place.slot]
        if part == 0:
            place.states[place.slot] = new[0], new[1], window
        elif part == 1:
            place.states[place.slot] = count, value, new[2]
        else:
            page_size, index = self.cache.page_size, part - 2
            first = reception.base + index * page_size
            tokens = reception.token_ids[first : first + page_size]
            place.page_ids[place.pages[index]] = tokens if writer.correct else -3

    def _assert_own(self, writer: Writer, part: int) -> None:
        """Check that the memory which a part hits is the reception's own, also when nobody waits for it."""
        cache, reception = self.cache, writer.reception
        held = cache.receptions.get(reception.number)
        assert held is not None, "foreign byte: the reception has ended, its writer has not"
        assert held.reception is reception, "foreign byte: another reception has the number"
        expected = SlotState.QUARANTINED if writer.quarantined else SlotState.RECEIVING
        assert cache.arena.slot_state(reception.slot) is expected, "foreign byte in a slot"
        if part > 1:
            owner = PageOwner.QUARANTINED if writer.quarantined else PageOwner.TRANSFER
            assert cache.arena.page_owner[reception.pages[part - 2]] == owner, "foreign byte in a page"

    def finish(self, writer: Writer) -> None:
        """Let everything land, see the end of the writer, and confirm."""
        while writer.parts:
            self.land(writer)
        self.writers.remove(writer)
        self.cache.confirm(writer.reception)
        self.confirmed.append(writer)

    def give_up(self, writer: Writer, *, ended: bool) -> None:
        """Abandon a reception; unless it has `ended`, its writer goes on."""
        self.cache.abandon(writer.reception, writer_ended=ended)
        if ended:
            self.writers.remove(writer)
        else:
            writer.quarantined = True

    def see_end(self, writer: Writer) -> None:
        """See the end of a writer whose reception was given up."""
        self.writers.remove(writer)
        self.cache.writer_ended(writer.reception)

    def reject(self, writer: Writer) -> None:
        """Abandon a confirmed reception: its bytes are wrong, or its source says that they have expired."""
        self.confirmed.remove(writer)
        self.cache.abandon(writer.reception, writer_ended=self.rng.random() < 0.5)

    def install(self, writer: Writer, step: int) -> bool:
        """Install a confirmed reception whose bytes are right."""
        assert writer.correct
        self.confirmed.remove(writer)
        accepted = self.cache.install(writer.reception, step)
        self.refused += not accepted
        self.pending += accepted and step - 1 > self.cache.arena.completed
        self.on_base += accepted and writer.reception.base > 0
        return accepted

    def copy(self, reception: Reception) -> None:
        """Copy a staged reception to the device: the work of a launch."""
        buffer = self.buffers.pop(reception.number)
        self.device.states[reception.slot] = buffer.states[0]
        if self.paged:
            self.device.page_ids[reception.pages] = buffer.page_ids[: len(reception.pages)]

    # --- readers -------------------------------------------------------------------------------------

    def export(self, tokens: np.ndarray, salt: str, step: int, most: int | None = None) -> Reader | None:
        """Begin an export of the deepest checkpoint; None = there is none."""
        export = self.cache.export(tokens, salt, step, most=most)
        if export is None:
            return None
        assert 0 < export.depth <= (len(tokens) if most is None else min(most, len(tokens)))
        reader = Reader(export, tokens[: export.depth].copy())
        self.readers.append(reader)
        self.read(reader)
        return reader

    def read(self, reader: Reader) -> None:
        """Read everything, as somebody may do at any time until the export ends."""
        export = reader.export
        assert self.cache.arena.slot_state(export.slot) is SlotState.EXPORTED
        self._assert_true(reader.tokens, export.slot, export.pages, "exported")

    def _assert_true(self, tokens: np.ndarray, slot: int, pages: np.ndarray, what: str) -> None:
        assert self.device.states[slot] == after(ZERO, tokens.tobytes()), f"{what} state"
        if self.paged:
            assert self.device.page_ids[pages].tobytes() == tokens.tobytes(), f"{what} pages"

    def end_export(self, reader: Reader) -> None:
        """Read a last time, and end."""
        self.read(reader)
        self.readers.remove(reader)
        self.cache.end_export(reader.export)

    # --- eviction ------------------------------------------------------------------------------------

    def _evicted(self, evicted: EvictedCheckpoint) -> None:
        """Read a checkpoint that is about to be evicted, as a tier does."""
        self.evicted += 1
        arena, tokens = self.cache.arena, evicted.token_ids()
        assert len(tokens) == evicted.depth
        assert arena.slot_state(evicted.slot) is SlotState.CACHED, (
            "memory returned before the listener was told"
        )
        assert evicted.fence <= arena.completed
        if self.paged:
            assert (arena.page_owner[evicted.pages] == PageOwner.TREE).all()
        self._assert_true(tokens, evicted.slot, evicted.pages, "evicted")

    # --- any event -----------------------------------------------------------------------------------

    def act(self, step: int) -> None:
        """Let something happen to one of the writers or readers. `step`: the next one."""
        choices = [*self.writers, *self.confirmed, *self.readers]
        if not choices:
            return
        chosen, chance = self.rng.choice(choices), self.rng.random()
        if isinstance(chosen, Reader):
            if chance < 0.5:
                self.read(chosen)
            else:
                self.end_export(chosen)
        elif chosen in self.confirmed:
            if self.staged:
                return
            if chance < 0.8 and chosen.correct:
                self.install(chosen, step)
            else:
                self.reject(chosen)
        elif chosen.quarantined:
            if chance < 0.6:
                self.land(chosen)
            else:
                self.see_end(chosen)
        elif chance < 0.5:
            self.land(chosen)
        elif chance < 0.8:
            self.finish(chosen)
        else:
            self.give_up(chosen, ended=chance < 0.87)

    def close(self) -> None:
        """End everything that is going on."""
        for reader in list(self.readers):
            self.end_export(reader)
        for writer in list(self.writers):
            if not writer.quarantined:
                self.give_up(writer, ended=False)
            self.see_end(writer)
        for writer in list(self.confirmed):
            self.reject(writer)
