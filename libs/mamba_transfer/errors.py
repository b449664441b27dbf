"""Errors of the transfer of states.

TransferError
├── IncompatibleLayouts   two layouts that do not fit each other; names the field
├── UnusableAddress       an address that is not IP:PORT; a ValueError
├── NixlUnusable          NIXL is not installed, or refuses the memory (`nixl_transport`)
└── ConnectionFailed
    ├── PeerLost          the peer closed the connection, died, or did not answer in time
    ├── ForeignFrame      bytes that no peer of this protocol sends
    ├── ForeignVersion    a peer of another version of the protocol
    └── Stopped           the caller cancelled
"""


class TransferError(Exception):
    """Base class of the errors of transfers. The message says what went wrong."""


class IncompatibleLayouts(TransferError):
    """Two engines cannot exchange states, because a field of their layouts differs."""

    def __init__(self, field: str) -> None:
        super().__init__(f"no state can travel between these engines: {field}; give both the same setting")
        self.field = field
        """Name of the field that differs, with both values."""


class UnusableAddress(TransferError, ValueError):
    """The address of a transfer server is not an IP address and a port."""


class ConnectionFailed(TransferError):
    """A connection ended before the transfer was complete."""


class PeerLost(ConnectionFailed):
    """The other engine closed the connection, died, or did not answer in time."""


class ForeignFrame(ConnectionFailed):
    """The other side sent bytes that are no message of this protocol, or a message that is too large."""


class ForeignVersion(ConnectionFailed):
    """The other side sent a message of another version of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the peer speaks version {version} of the transfer protocol")
        self.version = version


class Stopped(ConnectionFailed):
    """The caller cancelled its own transfer."""
