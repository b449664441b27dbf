"""One sequence, three slots, a reception, an export, and a writer that may go on: a small world.

It is the world of `slot_world` with a network. A writer has one part, which lands at any time before its end
is seen, also after its reception was given up. An explorer tries every order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cache_bench import ids
from depth_coded import ZERO, after
from mamba_server.cache.protocol import Export, Reception
from mamba_server.cache.slot_state import SlotState
from slot_world import PROMPT, Action, SlotWorld

DEPTHS = (1, 2)
"""Depths of the states that are received: within the prompt, and all of it."""


@dataclass(eq=False)
class Writer:
    """Writer of one reception."""

    reception: Reception
    landed: bool = False
    quarantined: bool = False
    confirmed: bool = False


@dataclass
class SlotTransitWorld(SlotWorld):
    """One state of the exploration. `receptions`: number in the life of the world; there is one export."""

    receptions: int = 1
    writers: list[Writer] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    flushed: bool = False
    received: int = 0
    exported: int = 0

    @property
    def writer(self) -> Writer | None:
        """Writer whose reception was not given up."""
        return next((writer for writer in self.writers if not writer.quarantined), None)

    @property
    def stray(self) -> Writer | None:
        """Writer whose reception was given up."""
        return next((writer for writer in self.writers if writer.quarantined), None)

    def actions(self) -> list[Action]:
        """Return every event that can come next."""
        out = super().actions()
        writer, stray = self.writer, self.stray
        if writer is None and self.received < self.receptions:
            out += [("receive", depth) for depth in DEPTHS]
        if writer is not None:
            if writer.confirmed:
                out.append(("install", 0))
            elif writer.landed:
                out.append(("confirm", 0))
            else:
                out.append(("land", 0))
            out.append(("abandon", 1))
            if not writer.confirmed and stray is None:
                out.append(("abandon", 0))
        if stray is not None:
            out.append(("writer_ended", 0))
            if not stray.landed:
                out.append(("land_late", 0))
        if self.exports:
            out.append(("end_export", 0))
        elif not self.exported:
            out.append(("export", 0))
        if not self.flushed and (self.exports or writer is not None):
            out.append(("flush", 0))
        return out

    def repeat(self, action: Action) -> None:
        kind, argument = action
        cache, writer, stray = self.bench.cache, self.writer, self.stray
        match kind:
            case "receive":
                reception = cache.receive(ids(1, 2)[:argument], "")
                if reception is not None:
                    self.writers.append(Writer(reception))
                self.received += 1
            case "land":
                assert writer is not None
                self._land(writer, SlotState.RECEIVING)
            case "land_late":
                assert stray is not None
                self._land(stray, SlotState.QUARANTINED)
            case "confirm":
                assert writer is not None
                cache.confirm(writer.reception)
                writer.confirmed = True
            case "install":
                assert writer is not None
                self.writers.remove(writer)
                cache.install(writer.reception, self.bench.step + 1)
            case "abandon":
                assert writer is not None
                cache.abandon(writer.reception, writer_ended=bool(argument))
                writer.quarantined = True
                if argument:
                    self.writers.remove(writer)
            case "writer_ended":
                assert stray is not None
                self.writers.remove(stray)
                cache.writer_ended(stray.reception)
            case "export":
                export = cache.export(ids(1, 2), "", self.bench.step + 1)
                self.exports += [export] if export is not None else []
                self.exported += 1
            case "end_export":
                cache.end_export(self.exports.pop())
            case "flush":
                cache.flush()
                while cache.sweeping:
                    cache.sweep()
                self.flushed = True
            case _:
                super().repeat(action)

    def _land(self, writer: Writer, expected: SlotState) -> None:
        """Let the bytes land, wherever the memory is now."""
        reception = writer.reception
        assert self.bench.arena.slot_state(reception.slot) is expected, "foreign bytes"
        self.states[reception.slot] = after(ZERO, reception.token_ids.tobytes())
        writer.landed = True

    def check(self) -> None:
        super().check()
        for export in self.exports:
            assert self.bench.arena.slot_state(export.slot) is SlotState.EXPORTED
            assert self.states[export.slot] == after(ZERO, ids(1, 2)[: export.depth].tobytes())

    def settle_down(self) -> None:
        """End everything and drain: every slot is free again."""
        for export in list(self.exports):
            self.exports.remove(export)
            self.bench.cache.end_export(export)
        if self.writer is not None:
            self.do(("abandon", 1))
        if self.stray is not None:
            self.do(("writer_ended", 0))
        super().settle_down()

    def key(self) -> object:
        """Return the key of this world: worlds with equal keys have equal futures."""
        writers = (
            (each.reception.slot, each.reception.depth, each.landed, each.quarantined, each.confirmed)
            for each in self.writers
        )
        cache = self.bench.cache
        return (
            super().key(),
            (self.flushed, self.received, self.exported),
            tuple(export.slot for export in self.exports),
            tuple(writers),
            tuple((install.node.slot, install.fence) for install in cache.installs),
            tuple(node.epoch for node in cache.tree.walk()),
        )


assert max(DEPTHS) <= PROMPT
