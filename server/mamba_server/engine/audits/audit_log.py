"""`AuditLog`: counts, distances and the last results of audits, for metrics, the log and an admin call."""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mamba_server.cache import Lineage, Origin, Quarantined
from mamba_server.wire import AuditSpan
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)
Outcome = Literal["ok", "diverged", "abandoned"]
MOST_RESULTS = 64
"""Number of the last results that are kept."""
MOST_NAMED = 16
"""Number of quarantined checkpoints and of ancestors that a result names."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Holds what one audit found when it computed the answer to a request once more."""

    request_id: str
    choice: int
    """Index of the answer among the answers to the request."""
    outcome: Outcome
    tokens: int
    """Tokens of the prompt and the answer."""
    outputs: int
    depth: int
    """Depth of the checkpoint in question: the one that the answer resumed from, or an ancestor of it."""
    lineage: Lineage | None
    """Lineage of the checkpoint in question; None = nobody recorded it."""
    reason: str = ""
    """Why the audit was abandoned, or what differed: `scores`, or the part of the state and its recurrent
    layer."""
    distance: float | None = None
    """Worst mean difference of log-probabilities, in nats; None = they were not compared."""
    bound: float | None = None
    """Bound of `distance`: a larger one is a divergence; None = the log-probabilities were not compared."""
    state_distance: float | None = None
    """Largest difference of a state, relative to its head; None = no checkpoint was there to compare."""
    quarantined: tuple[Quarantined, ...] = ()
    accepted: int = 0
    """Number of accepted drafts among the tokens of the answer."""

    @property
    def origin(self) -> Origin:
        """Where the checkpoint was before this engine's arena had it; "device" = it was computed here."""
        return self.lineage.provenance.origin if self.lineage is not None else "device"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as the log and the admin call show it."""
        document: dict[str, Any] = {
            "request": self.request_id,
            "choice": self.choice,
            "outcome": self.outcome,
            "reason": self.reason,
            "origin": self.origin,
            "tokens": self.tokens,
            "outputTokens": self.outputs,
            "acceptedDrafts": self.accepted,
            "distance": _finite(self.distance),
            "bound": self.bound,
            "stateDistance": _finite(self.state_distance),
            "depth": self.depth,
            "lineage": _names(self.lineage),
        }
        if self.outcome == "diverged":
            document["quarantined"] = len(self.quarantined)
            document["quarantinedCheckpoints"] = [
                {"depth": len(each.token_ids), "lineage": _names(each.lineage)[:1]}
                for each in self.quarantined[:MOST_NAMED]
            ]
        return document


def _finite(distance: float | None) -> float | None:
    """Return `distance` as a number that JSON has: infinity becomes a large one, and None stays."""
    return None if distance is None else min(distance, 1e300)


def _names(lineage: Lineage | None) -> list[dict[str, Any]]:
    """Return a checkpoint and its ancestors, the deepest first."""
    ancestors = [] if lineage is None else zip(range(MOST_NAMED), lineage.chain(), strict=False)
    return [
        {
            "depth": each.depth,
            "origin": each.provenance.origin,
            "request": each.provenance.request_id,
            "place": each.provenance.place,
            "step": each.step,
            "resumed": each.resumed,
        }
        for _, each in ancestors
    ]


class AuditLog:
    """Keeps and counts the results of one engine's audits. Only the loop's thread changes it."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[Outcome, Origin]] = Counter()
        self.results: deque[AuditResult] = deque(maxlen=MOST_RESULTS)
        self._distances: list[tuple[str, float]] = []
        self._spans: list[AuditSpan] = []

    @property
    def diverged(self) -> int:
        """Number of answers that diverged."""
        return sum(count for (outcome, _), count in self.outcomes.items() if outcome == "diverged")

    def record(self, result: AuditResult) -> None:
        """Count and keep a result, and log it."""
        self.outcomes[result.outcome, result.origin] += 1
        self.results.append(result)
        for kind, distance in (("scores", result.distance), ("states", result.state_distance)):
            if distance is not None:
                self._distances.append((kind, distance))
        write = log.error if result.outcome == "diverged" else log.debug
        write("audit", **result.as_dict())

    def counters(self) -> dict[str, float]:
        """Return the counters by metric name."""
        # All series exist from the start: an alert sees a counter grow only if it was there before.
        return {
            f"audits_total{{outcome={outcome},origin={origin}}}": self.outcomes[outcome, origin]
            for outcome in get_args(Outcome)
            for origin in get_args(Origin)
        }

    def take_distances(self) -> list[tuple[str, float]]:
        """Return and clear the distances, `scores` or `states`, since the last call."""
        distances, self._distances = self._distances, []
        return distances

    def note_span(self, traceparent: str, began: float, ended: float, result: AuditResult) -> None:
        """Keep a span of a traced request's audit until it is taken."""
        if len(self._spans) < MOST_RESULTS:
            self._spans.append(
                AuditSpan(
                    traceparent=traceparent, began=began, ended=ended, sequence=result.choice,
                    outcome=result.outcome, reason=result.reason, tokens=result.tokens,
                    distance=_finite(result.distance),
                )
            )  # fmt: skip

    def take_spans(self) -> list[AuditSpan]:
        """Return and clear the spans since the last call."""
        spans, self._spans = self._spans, []
        return spans

    def to_json(self) -> list[dict[str, Any]]:
        """Return the last results, the newest first."""
        return [result.as_dict() for result in reversed(self.results)]
