"""Routing decision: filters the engines of one snapshot, computes their costs, and picks the cheapest.

Pure; the router calls `choose`. A `RoutingRecord` explains a decision. It is converted to text only when it
is needed: for a client that sends the explain header, and for `/v1/routing/decisions`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from random import Random
from typing import Any, Literal, NamedTuple

import msgspec

from mamba_edge.exchange.explain_header import EXPLAIN_HEADER, Elsewhere
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
"""Difference in seconds up to which two costs count as equal."""
MAX_LISTED_MODELS = 8
"""Maximum number of models that an error lists for a client that requests an unknown one."""
Reason = Literal["only", "prefix", "home", "load"]
Endpoints = Sequence[Endpoint]


class NoCandidate(Enum):
    """Says why no engine can be chosen for a request."""

    NONE_KNOWN = "no engine is known"
    NONE_READY = "no engine that may serve the model is ready"
    MODEL_UNKNOWN = "no engine serves the model"
    ALL_TRIED = "every engine that could take the request was tried"
    NONE_ASKED_FOR = "no engine that the proxy asks for is ready"


class RoutingDecision(msgspec.Struct, frozen=True):
    """The engine that was chosen for one request, and the costs that were compared for that."""

    endpoint: Endpoint
    """The chosen engine."""
    index: int
    """Index of the chosen engine in `comparison.endpoints`."""
    comparison: CostComparison
    """Costs of all engines that passed the filters."""
    reason: Reason
    """only: the engine was the only candidate; prefix: it has part of the prompt cached; home: it is the home
    engine of a prompt that no engine has cached; load: it can begin with the prompt first."""

    @property
    def cost(self) -> Cost:
        """Cost at the chosen engine, computed when it is read."""
        return self.comparison.cost(self.index)

    @property
    def resumable(self) -> int:
        """Number of prompt tokens that the chosen engine has cached and need not compute."""
        return self.comparison.tokens_known.get(self.endpoint.name, NOTHING_KNOWN)[0]

    @property
    def candidates(self) -> int:
        """Number of engines that passed the filters."""
        return len(self.comparison.endpoints)

    def costs(self) -> tuple[Cost, ...]:
        """Return the costs at all engines that passed the filters."""
        return self.comparison.costs()


def no_such_model(name: str | None, served: Sequence[str] = ()) -> str:
    """Return the error message for a client whose model no engine serves; `served` are the served models."""
    message = f"the model '{(name or '')[:200]}' does not exist here"
    if not served:
        return message
    listed = ", ".join(f"'{model[:200]}'" for model in served[:MAX_LISTED_MODELS])
    more = f" and {len(served) - MAX_LISTED_MODELS} more" if len(served) > MAX_LISTED_MODELS else ""
    return f"{message}; {listed}{more} {'is' if len(served) == 1 else 'are'} served"


def serving(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the engines that serve the model. A request without a model may go to all of them."""
    model = request.model
    if model is None:
        return endpoints
    return [endpoint for endpoint in endpoints if endpoint.models is None or model in endpoint.models]


def available(endpoints: Endpoints, _: RoutingRequest | None = None) -> Endpoints:
    """Return the ready engines that write answers and do not drain; if there are none, the draining ones."""
    staying = [
        endpoint
        for endpoint in endpoints
        if endpoint.ready and not endpoint.draining and endpoint.role != "prefill"
    ]
    return staying or [endpoint for endpoint in endpoints if endpoint.ready and endpoint.role != "prefill"]


def computing_prompts(endpoints: Endpoints, _: RoutingRequest) -> Endpoints:
    """Return the ready engines that compute prompts for other engines."""
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.role == "prefill" and endpoint.ready and not endpoint.draining
    ]


def of_same_weights(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the engines whose states the other engine of the hand-over can use, as far as is known."""
    others = request.other_weights
    return [endpoint for endpoint in endpoints if endpoint.name not in others] if others else endpoints


def taking_states(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the engines that can receive the state of the prompt now; if there are none, all of them."""
    alike = of_same_weights([endpoint for endpoint in endpoints if endpoint.transfer is not None], request)
    return [endpoint for endpoint in alike if endpoint.credits > 0] or alike or endpoints


def allowed(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the engines whose address (host:port) or host the proxy in front of the gateway allows."""
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
    """Return the engines that have not failed the request."""
    tried = request.tried
    return [endpoint for endpoint in endpoints if endpoint.url not in tried] if tried else endpoints


def of_revision(endpoints: Endpoints, request: RoutingRequest) -> Endpoints:
    """Return the engines of the revision that a canary chose for the conversation; if none is left, all."""
    if request.candidate is None:
        return endpoints
    return [endpoint for endpoint in endpoints if endpoint.candidate is request.candidate] or endpoints


def with_room(endpoints: Endpoints, _: RoutingRequest) -> Endpoints:
    """Return the engines that were not full recently; if all were, all of them."""
    if len(endpoints) == 1:
        return endpoints
    return [endpoint for endpoint in endpoints if not endpoint.avoided] or endpoints


class Filter(NamedTuple):
    """Excludes engines that may not get a request, and names the reason when none is left."""

    keep: Callable[[Endpoints, RoutingRequest], Endpoints]
    """Returns the engines that are not excluded."""
    outcome: NoCandidate
    """Result of the decision if all engines are excluded."""
    reason: str
    """Reason for an excluded engine, as text."""


FILTERS = (
    Filter(serving, NoCandidate.MODEL_UNKNOWN, "serves another model"),
    Filter(available, NoCandidate.NONE_READY, "not ready"),
    Filter(allowed, NoCandidate.NONE_ASKED_FOR, "the proxy does not ask for it"),
    Filter(untried, NoCandidate.ALL_TRIED, "tried before"),
    Filter(of_revision, NoCandidate.ALL_TRIED, "the other revision of a canary"),
    Filter(with_room, NoCandidate.ALL_TRIED, "full lately"),
)
"""Filters of a decision, in order; each one gets the engines that the previous one has not excluded."""
FIRST_FILTERS = tuple(step for step in FILTERS if step.keep not in (allowed, untried, of_revision))
"""Filters that can exclude engines in the first attempt of a request that nobody restricts."""
PROMPT_FILTERS = (
    FILTERS[0],
    Filter(computing_prompts, NoCandidate.NONE_READY, "computes no prompts for others"),
    Filter(of_same_weights, NoCandidate.NONE_READY, "other weights"),
    *FILTERS[3:],
)
"""Filters for the choice of a prefill engine."""
ANSWER_FILTERS = (*FILTERS, Filter(taking_states, NoCandidate.NONE_READY, "takes no state now"))
"""Filters for the choice of a decode engine for a prompt that was computed elsewhere."""


def survivors(snapshot: Endpoints, request: RoutingRequest) -> Endpoints | NoCandidate:
    """Return the engines that pass all filters, or the reason why there are none."""
    if not snapshot:
        return NoCandidate.NONE_KNOWN
    endpoints = snapshot
    filters: tuple[Filter, ...]
    if request.stage != "request":
        filters = PROMPT_FILTERS if request.stage == "prompt" else ANSWER_FILTERS
    else:
        restricted = request.tried or request.allowed_addresses is not None or request.candidate is not None
        filters = FILTERS if restricted else FIRST_FILTERS
    for keep, outcome, _ in filters:
        endpoints = keep(endpoints, request)
        if not endpoints:
            return outcome
    return endpoints


def drop_reasons(snapshot: Endpoints, request: RoutingRequest) -> dict[str, str]:
    """Return the reason for each engine that does not pass the filters, by its name."""
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
    """Return the reason why an engine is not available."""
    if endpoint.role == "prefill":
        return "computes prompts for others"
    return "draining" if endpoint.draining else reason


def cheapest(totals: Sequence[float], rng: Random) -> int:
    """Return the index of the lowest total; among equal ones it is chosen at random.

    Raises ValueError if there are no totals.
    """
    least = min(totals) + TIE_SECONDS
    best = [index for index, total in enumerate(totals) if total <= least]
    return best[0] if len(best) == 1 else rng.choice(best)


def choose(
    snapshot: Endpoints, request: RoutingRequest, rng: Random, weights: RoutingWeights = EVEN
) -> RoutingDecision | NoCandidate:
    """Return the chosen engine for this request, or the reason why there is none."""
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


RESPONSE_HEADER = EXPLAIN_HEADER
"""Header of an answer with the explanation of the choice, for the clients that ask for it."""
MAX_SHOWN = 16
"""Maximum number of engines of each kind in an explanation, the cheapest first."""
MOST_HEADER_BYTES = 4096
"""Maximum size of the explain header in bytes; proxies refuse larger ones."""
MAX_RECORDS = 256
"""Number of recent decisions that are kept in memory."""


class RoutingRecord(msgspec.Struct, frozen=True):
    """One choice of an engine with all that it was based on, to be shown later."""

    request_id: str
    at: float
    """Time of the decision, in seconds since 1970 (UTC)."""
    snapshot: tuple[Endpoint, ...]
    request: RoutingRequest
    decision: RoutingDecision
    index: str
    """State of the prefix index at the time of the decision."""
    exact: bool
    """Whether the prompt was tokenized; otherwise its length is estimated from its bytes."""
    published: Depths = NOTHING
    """Numbers of prompt tokens that engines have cached according to the prefix index alone."""
    prefill: "RoutingRecord | None" = None
    """Choice of the prefill engine that computed the prompt; None = the chosen engine computes it."""
    handed_over: int = 0
    """Number of prompt tokens that the state of the prefill engine covers."""

    def explained(self, most: int = MAX_SHOWN) -> dict[str, Any]:
        """Return the explanation as JSON objects. Seconds are multiplied by the routing weights."""
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

    def elsewhere(self) -> Elsewhere | None:
        """Return the engine that could resume most of the prompt; None = it is the chosen one, or unknown."""
        chosen = self.decision.endpoint.name
        best = max(self.request.resumable.items(), key=lambda item: item[1], default=(chosen, 0))
        if best[1] <= self.request.resumable.get(chosen, 0):
            return None
        return Elsewhere(best[1], best[0])

    def header(self) -> bytes:
        """Return the explanation as ASCII text of at most `MOST_HEADER_BYTES`, shortened if necessary."""
        most = MAX_SHOWN
        while len(line := json.dumps(self.explained(most), separators=(",", ":"))) > MOST_HEADER_BYTES:
            most //= 2
            if not most:  # names alone may be long
                line = json.dumps({"reason": self.decision.reason})
                break
        return line.encode("ascii")

    def describe(self, span: SpanNote) -> None:
        """Record the decision and its reasons as attributes of `span`, the trace span of the choice."""
        decision = self.decision
        span.set(names.ENDPOINT, decision.endpoint.name)
        span.set(names.ROUTE_REASON, decision.reason)
        span.set(names.ROUTE_INDEX, self.index)
        span.set(names.ROUTE_SECONDS, round(decision.cost.total, 6))
        span.set(names.ROUTE_CANDIDATES, decision.candidates)
        span.set(names.PROMPT_TOKENS, self.request.prompt_tokens)
        span.set(names.RESUMABLE_TOKENS, decision.cost.resumable)

    def log_entry(self) -> dict[str, Any]:
        """Return the entry of `/v1/routing/decisions`: the explanation with time, request id and model."""
        time = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        return {
            "at": time,
            "requestId": self.request_id,
            "model": self.request.model,
            **self.explained(1 << 16),
        }


class RoutingLog:
    """Keeps the last `MAX_RECORDS` choices of engines of one gateway, to be shown."""

    def __init__(self) -> None:
        self._records: deque[RoutingRecord] = deque(maxlen=MAX_RECORDS)

    def add(self, record: RoutingRecord) -> None:
        """Add a record, and drop the oldest one if there are `MAX_RECORDS` others."""
        self._records.append(record)

    def drop(self, record: RoutingRecord) -> None:
        """Remove the record of a choice that was not used."""
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
