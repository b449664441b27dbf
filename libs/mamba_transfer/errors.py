"""Errors of the transfer of states.

TransferError
├── IncompatibleLayouts   two layouts between which no state can travel; names the field
├── UnusableAddress       an address that is not HOST:PORT; a ValueError
└── ConnectionFailed
    ├── PeerLost          the peer closed the connection, died, or did not answer in time
    ├── ForeignFrame      bytes that no peer of this protocol sends
    ├── ForeignVersion    a peer of another version of the protocol
    └── Stopped           the caller cancelled
"""


class TransferError(Exception):
    """The base of all errors. The message says what to do."""


class IncompatibleLayouts(TransferError):
    """A pair of layouts between which no state can travel."""

    def __init__(self, field: str) -> None:
        super().__init__(f"no state can travel between these engines: {field}; give both the same setting")
        self.field = field
        """Name of the field that differs, with both values."""


class UnusableAddress(TransferError, ValueError):
    """An address of a transfer server that is not HOST:PORT."""


class ConnectionFailed(TransferError):
    """The end of a connection before the end of a transfer."""


class PeerLost(ConnectionFailed):
    """A peer that closed the connection, died, or did not answer in time."""


class ForeignFrame(ConnectionFailed):
    """Bytes that no peer of this protocol sends, or more of them than a message may have."""


class ForeignVersion(ConnectionFailed):
    """A frame of another version of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the peer speaks version {version} of the transfer protocol")
        self.version = version


class Stopped(ConnectionFailed):
    """A transfer that its own caller cancelled."""
