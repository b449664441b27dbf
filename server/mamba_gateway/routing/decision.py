"""Routing: filter -> score -> pick over one frozen snapshot. Pure; the router calls `choose`."""

from collections.abc import Iterable, Sequence
from enum import Enum
from random import Random
from typing import Literal

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

TIE = 1e-9
"""Seconds within which two costs are the same."""
NAMED = 8
"""Most models that are named to a client who asks for another."""
Reason = Literal["only", "prefix", "home", "load"]


class NoCandidate(Enum):
    """Why no endpoint was chosen."""

    NONE_KNOWN = "no engine is known"
    NONE_READY = "no engine that may serve the model is ready"
    MODEL_UNKNOWN = "no engine serves the model"
    ALL_TRIED = "every engine that could take the request was tried"
    NONE_ASKED_FOR = "no engine that the proxy asks for is ready"


class RoutingDecision(msgspec.Struct, frozen=True):
    """The chosen endpoint and the comparison that it was chosen by."""

    index: int
    """Index of the chosen endpoint in `comparison.endpoints`."""
    comparison: CostComparison
    """Costs of all endpoints that passed the filters."""
    reason: Reason
    """only: the only candidate; prefix: it can resume part of the prompt; home: home engine of a prompt that
    no engine has; load: it begins with the prompt first."""

    @property
    def endpoint(self) -> Endpoint:
        """The chosen one."""
        return self.comparison.endpoints[self.index]

    @property
    def cost(self) -> Cost:
        """Of the chosen one: worked out when asked for."""
        return self.comparison.cost(self.index)

    @property
    def resumable(self) -> int:
        """Tokens of the prompt that the chosen one need not compute."""
        return self.comparison.known.get(self.endpoint.name, NOTHING_KNOWN)[0]

    @property
    def candidates(self) -> int:
        """How many passed the filters."""
        return len(self.comparison.endpoints)

    def costs(self) -> tuple[Cost, ...]:
        """Of all that passed the filters: worked out when asked for."""
        return self.comparison.costs()


def no_such_model(name: str | None, served: Sequence[str] = ()) -> str:
    """What a client is told whose model no engine serves; `served`: names of those that some engine does."""
    said = f"the model '{(name or '')[:200]}' does not exist here"
    if not served:
        return said
    named = ", ".join(f"'{each[:200]}'" for each in served[:NAMED])
    more = f" and {len(served) - NAMED} more" if len(served) > NAMED else ""
    return f"{said}; {named}{more} {'is' if len(served) == 1 else 'are'} served"


def available(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Filter: ready endpoints that are not draining; if there are none, draining ones that are still
    ready."""
    ready = tuple(endpoint for endpoint in endpoints if endpoint.ready)
    return tuple(endpoint for endpoint in ready if not endpoint.draining) or ready


def serving(endpoints: Iterable[Endpoint], model: str | None) -> tuple[Endpoint, ...]:
    """Filter: those that serve `model`; without a model in the request, all: the engine has a default."""
    return tuple(
        endpoint
        for endpoint in endpoints
        if model is None or endpoint.models is None or model in endpoint.models
    )


def allowed(endpoints: Iterable[Endpoint], addresses: frozenset[str] | None) -> tuple[Endpoint, ...]:
    """Filter: endpoints whose address (host:port) or host is in `addresses`; None = all."""
    if addresses is None:
        return tuple(endpoints)
    return tuple(
        endpoint
        for endpoint in endpoints
        if endpoint.address in addresses or _host(endpoint.address) in addresses
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def cheapest(totals: Sequence[float], rng: Random) -> int:
    """Picker: index of a lowest total, ties broken uniformly at random. Raises ValueError if there are
    none."""
    least = min(totals) + TIE
    best = [at for at, total in enumerate(totals) if total <= least]
    return best[0] if len(best) == 1 else rng.choice(best)


def choose(
    snapshot: Iterable[Endpoint], request: RoutingRequest, rng: Random, weights: RoutingWeights = EVEN
) -> RoutingDecision | NoCandidate:
    """The endpoint for this request, or why there is none."""
    known = tuple(snapshot)
    model, addresses, tried = request.model, request.allowed_addresses, request.tried
    candidates = [
        one
        for one in known
        if one.ready
        and not one.draining
        and (model is None or one.models is None or model in one.models)
        and one.url not in tried
    ]
    if not candidates:
        going = available(serving(known, model))
        candidates = [one for one in going if one.draining and one.url not in tried]
    # One that said that it is full gets a request only where all have.
    candidates = [one for one in candidates if not one.avoided] or candidates
    if addresses is not None:
        candidates = list(allowed(candidates, addresses))
    if not candidates:
        return _why_none(known, request)
    comparison = CostComparison.of(candidates, request, weights, rng)
    if len(candidates) == 1:
        return RoutingDecision(0, comparison, "only")
    index = cheapest(comparison.totals(), rng)
    return RoutingDecision(index, comparison, _reason(comparison.cost(index), comparison))


def _why_none(known: tuple[Endpoint, ...], request: RoutingRequest) -> NoCandidate:
    if not known:
        return NoCandidate.NONE_KNOWN
    if not (suitable := serving(known, request.model)):
        return NoCandidate.MODEL_UNKNOWN
    if not (ready := available(suitable)):
        return NoCandidate.NONE_READY
    if not allowed(ready, request.allowed_addresses):
        return NoCandidate.NONE_ASKED_FOR
    return NoCandidate.ALL_TRIED


def drop_reasons(snapshot: Iterable[Endpoint], request: RoutingRequest) -> dict[str, str]:
    """By name of each endpoint that did not pass the filters: the reason."""
    reasons: dict[str, str] = {}
    known = tuple(snapshot)
    usable = {endpoint.url for endpoint in available(serving(known, request.model))}
    for endpoint in known:
        if not serving((endpoint,), request.model):
            reasons[endpoint.name] = "serves another model"
        elif endpoint.url not in usable:
            reasons[endpoint.name] = "draining" if endpoint.draining else "not ready"
        elif not allowed((endpoint,), request.allowed_addresses):
            reasons[endpoint.name] = "the proxy does not ask for it"
        elif endpoint.url in request.tried:
            reasons[endpoint.name] = "tried before"
    return reasons


def _reason(chosen: Cost, comparison: CostComparison) -> Reason:
    if chosen.resumable:
        return "prefix"
    return "home" if not chosen.apart and comparison.charges else "load"
