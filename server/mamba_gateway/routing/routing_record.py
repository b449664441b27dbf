"""Explains a routing decision: costs of the candidates, and why other endpoints were dropped. Pure.

Rendered on demand: for a client that sends the explain header, and for `/v1/routing/decisions`.
"""

import json
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.routing.decision import RoutingDecision, drop_reasons
from mamba_gateway.routing.scoring import Cost, RoutingRequest
from mamba_prefix.prefix_index import NOTHING, Depths
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import SpanNote

REQUEST_HEADER = b"x-mambaserve-explain"
RESPONSE_HEADER = b"x-mambaserve-explain"
MAX_SHOWN = 16
"""Largest number of endpoints of each kind that are listed, the cheapest first."""
MOST_HEADER_BYTES = 4096
"""Largest size of the header in bytes: proxies refuse larger ones."""
MAX_RECORDS = 256
"""Number of recent decisions that are kept."""


class RoutingRecord(msgspec.Struct, frozen=True):
    """One decision with everything that it was made from."""

    request_id: str
    at: float
    """Seconds since the epoch."""
    snapshot: tuple[Endpoint, ...]
    request: RoutingRequest
    decision: RoutingDecision
    index: str
    """State of the index of resumable prefixes at the time."""
    exact: bool
    """Whether the prompt was tokenized; else its length is estimated from its bytes."""
    published: Depths = NOTHING
    """Depths of the prompt in the prefix index, without this gateway's own guesses."""

    def explained(self, most: int = MAX_SHOWN) -> dict[str, Any]:
        """Return the explanation as JSON objects; seconds are weighted ones."""
        ordered = sorted(self.decision.costs(), key=lambda cost: cost.total)
        left_out = drop_reasons(self.snapshot, self.request)
        return {
            "engine": self.decision.endpoint.name,
            "reason": self.decision.reason,
            "promptTokens": self.request.prompt_tokens,
            "tokenized": self.exact,
            "index": self.index,
            "considered": [_cost_fields(cost) for cost in ordered[:most]],
            "notShown": max(0, len(ordered) - most),
            "dropped": dict(list(left_out.items())[:most]),
        }

    def header(self) -> bytes:
        """Return the explanation as a line of ASCII of at most `MOST_HEADER_BYTES`, cut to fit."""
        most = MAX_SHOWN
        while len(line := json.dumps(self.explained(most), separators=(",", ":"))) > MOST_HEADER_BYTES:
            most //= 2
            if not most:  # names alone may be long
                line = json.dumps({"reason": self.decision.reason})
                break
        return line.encode("ascii")

    def describe(self, span: SpanNote) -> None:
        """Set attributes of `span`, the span of the choice of an engine, to what was decided and why."""
        decision = self.decision
        span.set(names.ENDPOINT, decision.endpoint.name)
        span.set(names.ROUTE_REASON, decision.reason)
        span.set(names.ROUTE_INDEX, self.index)
        span.set(names.ROUTE_SECONDS, round(decision.cost.total, 6))
        span.set(names.ROUTE_CANDIDATES, decision.candidates)
        span.set(names.PROMPT_TOKENS, self.request.prompt_tokens)
        span.set(names.RESUMABLE_TOKENS, decision.cost.resumable)

    def log_entry(self) -> dict[str, Any]:
        """Return an entry of `/v1/routing/decisions`: the explanation with time, request id and model."""
        time = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        return {
            "at": time,
            "requestId": self.request_id,
            "model": self.request.model,
            **self.explained(1 << 16),
        }


class RoutingLog:
    """The recent decisions of one gateway."""

    def __init__(self) -> None:
        self._records: deque[RoutingRecord] = deque(maxlen=MAX_RECORDS)

    def add(self, record: RoutingRecord) -> None:
        """Keep a record in place of the oldest."""
        self._records.append(record)

    def last(self, most: int = MAX_RECORDS) -> Iterable[RoutingRecord]:
        """Return the last `most` records, the newest first."""
        newest_first = list(self._records)[::-1]
        return newest_first[:most]


def _cost_fields(cost: Cost) -> dict[str, Any]:
    parts = {
        "compute": cost.compute,
        "queue": cost.queue,
        "memory": cost.memory,
        "decode": cost.decode,
        "apart": cost.apart,
    }
    return {
        "engine": cost.endpoint.name,
        "seconds": round(cost.total, 6),
        "resumable": cost.resumable,
        "seen": cost.seen,
        **{name: round(value, 6) for name, value in parts.items() if value},
    }
