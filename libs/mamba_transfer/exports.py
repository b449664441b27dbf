"""Exports as the transfer server sees them. An engine implements `ExportSource` and `StateHeir`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mamba_transfer.bundle import Buffers
from mamba_transfer.leases import Lease
from mamba_transfer.messages import Bequest, HotPrefix, Wanted


@dataclass(frozen=True, slots=True)
class OpenExport:
    """An export that is being read; its memory does not change until `ExportSource.close`."""

    depth: int
    """Depth of the checkpoint in tokens."""
    base: int
    """Tokens whose pages do not travel."""
    buffers: Buffers
    """The state, then the pages of [base, depth), in memory of the host."""
    lease: Lease


class ExportSource(Protocol):
    """The engine's side of a transfer server. All methods are called by threads of the server."""

    def open(self, request: Wanted) -> OpenExport | None:
        """Return the checkpoint that is asked for, locked; None if there is none, or its lease has ended.

        The call may block its thread until the engine's loop has answered.
        """
        ...

    def close(self, export: OpenExport, *, delivered: bool) -> None:
        """Unlock an export: the server reads no byte of its memory any more.

        Called once for each open export. `delivered`: whether the reader has it as a whole.
        """
        ...

    def renew(self, export: str) -> bool:
        """Renew the lease of an export that is not open yet. Return whether there is a live one."""
        ...

    def hottest(self, count: int) -> Sequence[HotPrefix]:
        """Return the prefixes that are evicted last, at most `count` of them, the most valuable first.

        The call may block its thread until the engine's loop has answered.
        """
        ...


class StateHeir(Protocol):
    """The engine as an heir of peers that end. All methods are called by threads of the server."""

    def places(self, role: str) -> int:
        """Return how many states of an ending engine of `role` there is room for; 0 = it takes none."""
        ...

    def inherit(self, bequest: Bequest) -> int:
        """Fetch what is worth it, and return the number of states that were fetched.

        The call blocks its thread for `bequest.seconds` at most.
        """
        ...
