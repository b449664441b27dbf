"""Exports as the transfer server sees them: checkpoints that an engine keeps for other engines to read.

An engine implements `ExportSource` and `StateHeir`, which the server calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mamba_transfer.bundle import Buffers
from mamba_transfer.leases import Lease
from mamba_transfer.messages import Bequest, HotPrefix, Wanted


@dataclass(frozen=True, slots=True)
class OpenExport:
    """An export that is being read; its memory does not change until `ExportSource.close` is called."""

    depth: int
    """Depth of the checkpoint in tokens."""
    base: int
    """Number of tokens at the beginning of the prefix whose pages are not sent, since the reader has them."""
    buffers: Buffers
    """Bytes to send, in host memory: the state, then the pages of the tokens [base, depth)."""
    lease: Lease


class ExportSource(Protocol):
    """Gives a transfer server the checkpoints of its engine; called from the server's own threads."""

    def open(self, request: Wanted) -> OpenExport | None:
        """Lock the requested checkpoint and return it; None if it is missing, or its lease has ended.

        The call may block its thread until the engine's loop has answered.
        """
        ...

    def close(self, export: OpenExport, *, delivered: bool) -> None:
        """Unlock an export, after the server has read its memory for the last time.

        The server calls this once for each open export. `delivered` says whether the reader has received all
        of it.
        """
        ...

    def renew(self, export: str) -> bool:
        """Renew the lease of an export that has not been opened. Return whether the lease had not ended."""
        ...

    def release(self, export: str) -> bool:
        """End an export that is not open, before its lease does. Return whether its lease had not ended."""
        ...

    def hottest(self, count: int) -> Sequence[HotPrefix]:
        """Return up to `count` prefixes that the engine would evict last, the most valuable first.

        The call may block its thread until the engine's loop has answered.
        """
        ...


class StateHeir(Protocol):
    """Takes over states of engines that end; called from threads of the transfer server."""

    def places(self, role: str) -> int:
        """Return for how many states of an ending engine of `role` there is room; 0 = it takes none."""
        ...

    def inherit(self, bequest: Bequest) -> int:
        """Fetch the states of `bequest` that are worth it, and return how many were fetched.

        The call blocks its thread for `bequest.seconds` at most.
        """
        ...
