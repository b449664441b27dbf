"""Outcomes of a fetch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Verdict(StrEnum):
    """The way a fetch ended. Bytes that landed may be used only after VALID."""

    VALID = "valid"
    """All bytes landed, their checksums agree, and the source held the export until then."""
    EXPIRED = "expired"
    """The source has no such export (any more), or is another incarnation."""
    REFUSED = "refused"
    """The two engines do not fit; `Outcome.detail` names the field."""
    CORRUPT = "corrupt"
    """A checksum differs."""
    LOST = "lost"
    """The peer died, closed the connection, or did not answer before the deadline."""
    CANCELLED = "cancelled"
    """The caller cancelled."""


class PendingWriter(Protocol):
    """A writer whose end was not seen: its memory is quarantined until it is."""

    def ended(self) -> bool:
        """Return whether no byte can land any more. Ask again later if not; time alone is no answer."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a fetch."""

    verdict: Verdict
    detail: str = ""
    """The field of a refusal, or why the peer counts as lost."""
    received: int = 0
    """Bytes that landed."""
    writer: PendingWriter | None = None
    """None = no byte can land any more. Sockets always end so."""
