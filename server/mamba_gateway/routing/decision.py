"""Routing: filter -> score -> pick over one frozen snapshot, and the record that explains the decision.

Pure; the router calls `choose`. A record is rendered on demand: for a client that sends the explain header,
and for `/v1/routing/decisions`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from random import Random
from typing import Any, Literal, NamedTuple

import msgspec

from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.routing.scoring import (
    EVEN,
    NOTHING_KNOWN,
    Cost,
    CostComparison,
    RoutingRequest,
    RoutingWeights,
)
from mamba_prefix.prefix_index import NOTHING, Depths
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import SpanNote

TIE_SECONDS = 1e-9
"""Difference up to which two costs count as equal."""
MAX_LISTED_MODELS = 8
"""Largest number of models that a client is told who asks for another one."""
Reason = Literal["only", "prefix", "home", "load"]
Endpoints = Sequence[Endpoint]


class NoCandidate(Enum):
    """Why no endpoint was chosen."""

    NONE_KNOWN = "no engine is known"
    NONE_READY = "no engine that may serve the model is ready"
    MODEL_UNKNOWN = "no engine serves the model"
    ALL_TRIED = "every engine that could take the request was tried"
    NONE_ASKED_FOR = "no engine that the proxy asks for is ready"


class RoutingDecision(msgspec.Struct, frozen=True):
    """The chosen endpoint and the comparison that it was chosen by."""

    endpoint: Endpoint
    """The chosen endpoint."""
    index: int
    """Index of the chosen endpoint in `comparison.endpoints`."""
    comparison: CostComparison
    """Costs of all endpoints that passed the filters."""
    reason: Reason
    """only: the only candidate; prefix: it can resume part of the prompt; home: home engine of a prompt that
    no engine has; load: it begins with the prompt first."""

    @property
    def cost(self) -> Cost:
        """The cost at the chosen endpoint, computed on demand."""
        return self.comparison.cost(self.index)

    @property
    def resumable(self) -> int:
        """Tokens of the prompt that the chosen endpoint need not compute."""
        return self.comparison.tokens_known.get(self.endpoint.name, NOTHING_KNOWN)[0]

    @property
    def candidates(self) -> int:
        """Number of endpoints that passed the filters."""
        return len(self.comparison.endpoints)

    def costs(self) -> tuple[Cost, ...]:
        """Return the costs at all endpoints that passed the filters."""
        return self.comparison.costs()


def no_such_model(name: str | None, served: Sequence[str] = ()) -> str:
    """Return the message for a client whose model no engine serves; `served`: the names of the others."""
    message = f"the model '{(name or '')[:200]}' does not exist here"
    if not served:
        return message
    listed = ", ".join(f"'{model[:200]}'" for model in served[:MAX_LISTED_MODELS])
    more = f" and {len(served) - MAX_LISTED_MODELS} more" if len(served) > MAX_LISTED_MODELS else ""
    return f"{message}; {listed}{more} {'is' if len(served) == 1 else 'are'} served"


def serving(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the endpoints that serve the model; without a model all of them: an engine has a default."""
    model = request.model
    if model is None:
        return endpoints
    return [endpoint for endpoint in endpoints if endpoint.models is None or model in endpoint.models]


def available(endpoints: Endpoints, _: RoutingRequest | None = None) -> Endpoints:
    """Return the ready endpoints that write answers and stay; if there are none, the draining ones."""
    staying = [
        endpoint
        for endpoint in endpoints
        if endpoint.ready and not endpoint.draining and endpoint.role != "prefill"
    ]
    return staying or [endpoint for endpoint in endpoints if endpoint.ready and endpoint.role != "prefill"]


def computing_prompts(endpoints: Endpoints, _: RoutingRequest) -> Endpoints:
    """Return the ready endpoints that compute prompts for others."""
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.role == "prefill" and endpoint.ready and not endpoint.draining
    ]


def of_same_weights(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the endpoints whose states the other engine of the hand-over can use, as far as is known."""
    others = request.other_weights
    return [endpoint for endpoint in endpoints if endpoint.name not in others] if others else endpoints


def taking_states(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the endpoints that can take the state of the prompt now; if there are none, all of them."""
    alike = of_same_weights([endpoint for endpoint in endpoints if endpoint.transfer is not None], request)
    return [endpoint for endpoint in alike if endpoint.credits > 0] or alike or endpoints


def allowed(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the endpoints whose address (host:port) or host the proxy allows."""
    addresses = request.allowed_addresses
    if addresses is None:
        return endpoints
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.address in addresses or _host(endpoint.address) in addresses
    ]


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def untried(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the endpoints that have not failed the request yet."""
    tried = request.tried
    return [endpoint for endpoint in endpoints if endpoint.url not in tried] if tried else endpoints


def with_room(endpoints: Endpoints, _: RoutingRequest) -> Endpoints:
    """Return the endpoints that were not full lately; if all were, all of them."""
    if len(endpoints) == 1:
        return endpoints
    return [endpoint for endpoint in endpoints if not endpoint.avoided] or endpoints


class Filter(NamedTuple):
    """One reason to leave endpoints out."""

    keep: Callable[[Endpoints, RoutingRequest], Endpoints]
    """Returns the endpoints that pass."""
    outcome: NoCandidate
    """The result where no endpoint passes."""
    reason: str
    """Why an endpoint did not pass."""


FILTERS = (
    Filter(serving, NoCandidate.MODEL_UNKNOWN, "serves another model"),
    Filter(available, NoCandidate.NONE_READY, "not ready"),
    Filter(allowed, NoCandidate.NONE_ASKED_FOR, "the proxy does not ask for it"),
    Filter(untried, NoCandidate.ALL_TRIED, "tried before"),
    Filter(with_room, NoCandidate.ALL_TRIED, "full lately"),
)
"""Every filter of a decision, in order; each gets the endpoints that the one before it let pass."""
FIRST_FILTERS = tuple(step for step in FILTERS if step.keep not in (allowed, untried))
"""Filters that leave endpoints out of the first attempt of a request that no proxy restricts."""
PROMPT_FILTERS = (
    FILTERS[0],
    Filter(computing_prompts, NoCandidate.NONE_READY, "computes no prompts for others"),
    Filter(of_same_weights, NoCandidate.NONE_READY, "other weights"),
    *FILTERS[3:],
)
"""Filters of the choice of a prefill engine."""
ANSWER_FILTERS = (*FILTERS, Filter(taking_states, NoCandidate.NONE_READY, "takes no state now"))
"""Filters of the choice of a decode engine for a prompt that was computed."""


def survivors(snapshot: Endpoints, request: RoutingRequest) -> Endpoints | NoCandidate:
    """Return the endpoints that pass all filters, or why there are none."""
    if not snapshot:
        return NoCandidate.NONE_KNOWN
    endpoints = snapshot
    filters: tuple[Filter, ...]
    if request.stage != "request":
        filters = PROMPT_FILTERS if request.stage == "prompt" else ANSWER_FILTERS
    else:
        restricted = request.tried or request.allowed_addresses is not None
        filters = FILTERS if restricted else FIRST_FILTERS
    for keep, outcome, _ in filters:
        endpoints = keep(endpoints, request)
        if not endpoints:
            return outcome
    return endpoints


def drop_reasons(snapshot: Endpoints, request: RoutingRequest) -> dict[str, str]:
    """Return by name of each endpoint that does not pass the filters why it does not."""
    reasons: dict[str, str] = {}
    endpoints = snapshot
    filters = {"request": FILTERS, "prompt": PROMPT_FILTERS, "answer": ANSWER_FILTERS}[request.stage]
    for keep, _, reason in filters:
        passing = keep(endpoints, request)
        urls = {endpoint.url for endpoint in passing}
        for endpoint in endpoints:
            if endpoint.url not in urls:
                reasons[endpoint.name] = _reason_at(endpoint, reason) if keep is available else reason
        endpoints = passing
    return {endpoint.name: reasons[endpoint.name] for endpoint in snapshot if endpoint.name in reasons}


def _reason_at(endpoint: Endpoint, reason: str) -> str:
    """Return why an endpoint is not available."""
    if endpoint.role == "prefill":
        return "computes prompts for others"
    return "draining" if endpoint.draining else reason


def cheapest(totals: Sequence[float], rng: Random) -> int:
    """Return the index of a lowest total, ties broken uniformly at random.

    Raises ValueError if there are no totals.
    """
    least = min(totals) + TIE_SECONDS
    best = [index for index, total in enumerate(totals) if total <= least]
    return best[0] if len(best) == 1 else rng.choice(best)


def choose(
    snapshot: Endpoints, request: RoutingRequest, rng: Random, weights: RoutingWeights = EVEN
) -> RoutingDecision | NoCandidate:
    """Return the endpoint for this request, or why there is none."""
    candidates = survivors(snapshot, request)
    if isinstance(candidates, NoCandidate):
        return candidates
    comparison = CostComparison.of(candidates, request, weights, rng)
    if len(candidates) == 1:
        return RoutingDecision(candidates[0], 0, comparison, "only")
    index = cheapest(comparison.totals(), rng)
    reason = _reason(comparison.cost(index), comparison)
    return RoutingDecision(candidates[index], index, comparison, reason)


def _reason(chosen: Cost, comparison: CostComparison) -> Reason:
    if chosen.resumable:
        return "prefix"
    return "home" if not chosen.apart and comparison.charges else "load"


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
    prefill: "RoutingRecord | None" = None
    """The choice of the engine that computed the prompt for the chosen one; None = no other engine did."""
    handed_over: int = 0
    """Tokens of the prompt whose state that engine hands over."""

    def explained(self, most: int = MAX_SHOWN) -> dict[str, Any]:
        """Return the explanation as JSON objects; seconds are weighted ones."""
        ordered = sorted(self.decision.costs(), key=lambda cost: cost.total)
        left_out = drop_reasons(self.snapshot, self.request)
        other = {}
        if self.prefill is not None:
            other = {"handedOver": self.handed_over, "prefill": self.prefill.explained(most)}
        return {
            "engine": self.decision.endpoint.name,
            "reason": self.decision.reason,
            "promptTokens": self.request.prompt_tokens,
            "tokenized": self.exact,
            "index": self.index,
            "considered": [_cost_fields(cost) for cost in ordered[:most]],
            "notShown": max(0, len(ordered) - most),
            "dropped": dict(list(left_out.items())[:most]),
            **other,
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

    def drop(self, record: RoutingRecord) -> None:
        """Remove a record whose choice was not followed."""
        self._records = deque((one for one in self._records if one is not record), maxlen=MAX_RECORDS)

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
