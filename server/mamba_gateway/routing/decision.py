"""Routing: filter -> score -> pick over one frozen snapshot. Pure; the router calls `choose`."""

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Literal, NamedTuple

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
    """Return the ready endpoints that stay; if there are none, those that are ready and draining."""
    staying = [endpoint for endpoint in endpoints if endpoint.ready and not endpoint.draining]
    return staying or [endpoint for endpoint in endpoints if endpoint.ready]


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


def survivors(snapshot: Endpoints, request: RoutingRequest) -> Endpoints | NoCandidate:
    """Return the endpoints that pass all filters, or why there are none."""
    if not snapshot:
        return NoCandidate.NONE_KNOWN
    endpoints = snapshot
    restricted = request.tried or request.allowed_addresses is not None
    for keep, outcome, _ in FILTERS if restricted else FIRST_FILTERS:
        endpoints = keep(endpoints, request)
        if not endpoints:
            return outcome
    return endpoints


def drop_reasons(snapshot: Endpoints, request: RoutingRequest) -> dict[str, str]:
    """Return by name of each endpoint that does not pass the filters why it does not."""
    reasons: dict[str, str] = {}
    endpoints = snapshot
    for keep, _, reason in FILTERS:
        passing = keep(endpoints, request)
        urls = {endpoint.url for endpoint in passing}
        for endpoint in endpoints:
            if endpoint.url not in urls:
                leaves = endpoint.draining and keep is available
                reasons[endpoint.name] = "draining" if leaves else reason
        endpoints = passing
    return {endpoint.name: reasons[endpoint.name] for endpoint in snapshot if endpoint.name in reasons}


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
