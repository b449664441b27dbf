"""Memory of bundles as buffers in host memory: the state of a slot, then pages in the order of their tokens.

Exporter, importer and tiers access the arena through this module. On a CPU the buffers are the memory of the
arena itself. On a GPU they are pinned host memory, and copies on the stream of the forward pass fill and
empty them: each copy is ordered with the steps of the model, and the loop need not wait for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from mamba_server.cache import Ints
from mamba_server.engine.stepping.forward_stream import ForwardStream, Ticket
from mamba_tier.bundle_shape import BundleShape
from mamba_transfer.bundle import Segment, arena_buffers, bundle_bytes, page_segments, slot_segments
from mamba_transfer.layout import StateLayout

Buffers = list[memoryview]


@dataclass(frozen=True, slots=True)
class OutgoingBundle:
    """A checkpoint's bytes that are to be read; `buffers` hold them once `wait` has returned."""

    buffers: Buffers
    wait: Callable[[], None]
    """Waits until the bytes are in `buffers`. The loop must not call this, because it blocks."""
    is_ready: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class LandingBundle:
    """Buffers into which a thread writes a checkpoint; `land` then copies the bytes into the arena."""

    buffers: Buffers
    land: Callable[[], None]
    """Copies complete bytes into the arena. The loop calls this between two steps."""


class BundleMemory(Protocol):
    """Gives threads access to checkpoints in the memory of one arena, to read or to write them."""

    layout: StateLayout
    copies: bool
    """Whether the buffers are copies, so that later steps may overwrite the memory of the arena."""

    def outgoing(self, slot: int, pages: Ints) -> OutgoingBundle:
        """Return buffers with the bytes of a checkpoint. The loop calls this between two steps."""
        ...

    def landing(self, slot: int, pages: Ints) -> LandingBundle:
        """Return buffers to receive the bytes of a checkpoint. The loop calls this between two steps."""
        ...


class HostBundleMemory:
    """`BundleMemory` of an arena in host memory.

    Its buffers are the memory of the arena: nothing is copied.
    """

    copies = False

    def __init__(self, memory: torch.Tensor, layout: StateLayout) -> None:
        self.layout = layout
        self._arena = memory.numpy().data

    def outgoing(self, slot: int, pages: Ints) -> OutgoingBundle:
        return OutgoingBundle(self._buffers(slot, pages), lambda: None, lambda: True)

    def landing(self, slot: int, pages: Ints) -> LandingBundle:
        return LandingBundle(self._buffers(slot, pages), lambda: None)

    def _buffers(self, slot: int, pages: Ints) -> Buffers:
        return arena_buffers(self._arena, self.layout, slot, pages.tolist())


class DeviceBundleMemory:
    """Access to an arena in the memory of a device, by copies to and from pinned host memory.

    `pinned` is False only in tests, which may lack a device that pins memory.
    """

    copies = True

    def __init__(
        self, memory: torch.Tensor, layout: StateLayout, stream: ForwardStream, *, pinned: bool = True
    ) -> None:
        self.layout = layout
        self._memory, self._stream, self._pinned = memory, stream, pinned
        self._landed: list[Ticket[bool]] = []
        """Copies into the arena that the device may not have completed."""

    def outgoing(self, slot: int, pages: Ints) -> OutgoingBundle:
        return self.copy_out(slot, pages, self.host_buffer(len(pages)))

    def host_buffer(self, pages: int) -> torch.Tensor:
        """Return pinned host memory for a bundle of `pages` pages."""
        return self.host_buffer_of(bundle_bytes(self.layout, pages))

    def host_buffer_of(self, size: int) -> torch.Tensor:
        """Return `size` bytes of pinned host memory."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)

    def copy_out(self, slot: int, pages: Ints, host: torch.Tensor) -> OutgoingBundle:
        """Copy a bundle to the beginning of `host`, once the steps launched so far are complete."""
        segments = self._segments(slot, pages)

        def copy() -> bool:
            offset = 0
            for start, length in segments:
                host[offset : offset + length].copy_(self._memory[start : start + length], non_blocking=True)
                offset += length
            return True

        ticket = self._stream.launch(copy)
        return OutgoingBundle(
            self._host_buffers(host, len(pages)), self._waiter(ticket), lambda: is_done(self._stream, ticket)
        )

    def landing(self, slot: int, pages: Ints) -> LandingBundle:
        host, segments = self.host_buffer(len(pages)), self._segments(slot, pages)

        def copy() -> bool:
            offset = 0
            for start, length in segments:
                self._memory[start : start + length].copy_(host[offset : offset + length], non_blocking=True)
                offset += length
            return True

        return LandingBundle(self._host_buffers(host, len(pages)), lambda: self._land(copy))

    def _land(self, copy: Callable[[], bool]) -> None:
        """Launch a copy into the arena; the device carries it out before the next step."""
        complete = [ticket for ticket in self._landed if is_done(self._stream, ticket)]
        self._landed = [ticket for ticket in self._landed if ticket not in complete]
        for ticket in complete:
            self._stream.wait(ticket)
        ticket = self._stream.launch(copy)
        if ticket.error is not None:
            raise ticket.error
        self._landed.append(ticket)

    def _waiter(self, ticket: Ticket[bool]) -> Callable[[], None]:
        def wait() -> None:
            self._stream.wait(ticket)

        return wait

    def _segments(self, slot: int, pages: Ints) -> list[Segment]:
        return [*slot_segments(self.layout, slot), *page_segments(self.layout, list(pages))]

    def _host_buffers(self, host: torch.Tensor, pages: int) -> Buffers:
        state = self.layout.state_bytes
        whole = host.numpy().data
        end = bundle_bytes(self.layout, pages)
        return [whole[:state], whole[state:end]] if end > state else [whole[:state]]


def is_done(stream: ForwardStream, ticket: Ticket[bool]) -> bool:
    """Return whether the device has completed the work of `ticket`, without waiting for it."""
    query = getattr(stream, "is_complete", None)
    return ticket.done.is_set() if query is None else bool(query(ticket))


def shape_of(layout: StateLayout) -> BundleShape:
    """Return sizes and identity of an arena's bundles, by which files with other bundles are refused."""
    return BundleShape(
        fingerprint=layout.fingerprint,
        layout=layout.digest,
        page_size=layout.page_size,
        state_bytes=layout.state_bytes,
        page_bytes=layout.page_bytes,
    )
