"""`AnswerAudits`: what the core needs of audits, which compute answers once more in idle steps.

`mamba_server.engine.audits` implements it; the core calls it between two steps.
"""

from collections.abc import Callable
from typing import Any, Protocol

from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import AuditSpan


class AuditRecords(Protocol):
    """Gives the results of an engine's audits to metrics, traces and the admin API."""

    def counters(self) -> dict[str, float]:
        """Return the counters by metric name."""
        ...

    def take_distances(self) -> list[tuple[str, float]]:
        """Return and clear the kind and the distance of each comparison since the last call."""
        ...

    def take_spans(self) -> list[AuditSpan]:
        """Return and clear the spans of traced requests' audits since the last call."""
        ...

    def to_json(self) -> list[dict[str, Any]]:
        """Return the last results, the newest first."""
        ...


class NoRecords:
    """`AuditRecords` of an engine that audits nothing: every result is empty."""

    def counters(self) -> dict[str, float]:
        return {}

    def take_distances(self) -> list[tuple[str, float]]:
        return []

    def take_spans(self) -> list[AuditSpan]:
        return []

    def to_json(self) -> list[dict[str, Any]]:
        return []


class AnswerAudits(Protocol):
    """Computes some answers of an engine once more and compares them, while the core has no other work."""

    def observe(self, schedule: Schedule) -> None:
        """Choose among the sequences that begin in a step those whose answers are to be audited."""
        ...

    def ended(self, sequence: Sequence, keep: int | None) -> None:
        """Queue the answer of a sequence for an audit; `keep`: its tokens that count, None = all known."""
        ...

    def interrupt(self) -> None:
        """Give back the memory of the audit that is being computed, because there is other work."""
        ...

    def compute(self, step: int, fail: Callable[[Schedule, BaseException], None]) -> bool:
        """Compute the next piece of an audit as `step`, and wait for it; return whether there was one.

        Called while nothing else is in flight. `fail` is called with the error that the device raised.
        """
        ...

    @property
    def due(self) -> bool:
        """Whether an audit waits or is under way."""
        ...

    @property
    def holding(self) -> bool:
        """Whether an audit holds memory."""
        ...

    @property
    def log(self) -> AuditRecords:
        """Results of the audits."""
        ...

    @property
    def changes(self) -> int:
        """Number of changes of the cache's memory by audits."""
        ...


class NoAudits:
    """`AnswerAudits` of an engine that audits nothing: every method does nothing."""

    due = holding = False
    changes = 0
    log: AuditRecords = NoRecords()

    def observe(self, schedule: Schedule) -> None:
        """Do nothing."""

    def ended(self, sequence: Sequence, keep: int | None) -> None:
        """Do nothing."""

    def interrupt(self) -> None:
        """Do nothing."""

    def compute(self, step: int, fail: Callable[[Schedule, BaseException], None]) -> bool:
        """Return False: there is nothing to compute."""
        return False
