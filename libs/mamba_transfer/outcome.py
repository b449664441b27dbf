"""Outcomes of a fetch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Verdict(StrEnum):
    """How a fetch ended. Bytes that have arrived may be used only if it is VALID."""

    VALID = "valid"
    """All bytes arrived, their checksums match, and the source kept the checkpoint unchanged until then."""
    EXPIRED = "expired"
    """The source has no such export, or no longer has it, or its engine has restarted."""
    REFUSED = "refused"
    """The layouts, transports or versions of the two engines do not fit; `Outcome.detail` names the field."""
    CORRUPT = "corrupt"
    """The checksum of a sub-block does not match."""
    LOST = "lost"
    """The other engine died, closed the connection, did not answer in time, or broke the protocol."""
    CANCELLED = "cancelled"
    """The caller cancelled the fetch."""


class PendingWriter(Protocol):
    """A writer to landing memory that could not be stopped.

    The memory must not be used again before the writer ends.
    """

    def ended(self) -> bool:
        """Return whether the writer has ended. If not, call again later; waiting alone proves nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a fetch ended, with details for logs and metrics."""

    verdict: Verdict
    detail: str = ""
    """Reason of a refusal, or cause of a failure; empty if the fetch is VALID or EXPIRED."""
    received: int = 0
    """Number of bytes that arrived."""
    writer: PendingWriter | None = None
    """Writer that may still write to the landing memory; None = there is none, as always after a fetch over
    sockets."""
