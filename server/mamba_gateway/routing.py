"""Routing: filter -> score -> pick over one frozen snapshot. Pure; the relay calls `choose` once per attempt.

A further scorer (resumable prefixes) is one more entry of the weighted list.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from mamba_gateway.endpoints import Endpoint

Scorer = Callable[[Sequence[Endpoint]], Mapping[str, float]]
"""From endpoints that passed the filters to one score in [0, 1] for each URL, 1 the best."""


class NoCandidate(Enum):
    """Why no endpoint was chosen."""

    NONE_KNOWN = "no engine is known"
    NONE_READY = "no engine that may serve the model is ready"
    MODEL_UNKNOWN = "no engine serves the model"
    ALL_TRIED = "every engine that could take the request was tried"


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What routing reads of a request."""

    model: str | None
    tried: tuple[str, ...] = ()
    """URLs that failed for this request."""


def no_such_model(name: str | None) -> str:
    """What a client is told whose model no engine serves."""
    return f"the model '{(name or '')[:200]}' does not exist here"


def available(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Filter: those that are ready and stay."""
    return tuple(endpoint for endpoint in endpoints if endpoint.ready and not endpoint.draining)


def serving(endpoints: Iterable[Endpoint], model: str | None) -> tuple[Endpoint, ...]:
    """Filter: those that serve `model`; without a model in the request, all: the engine has a default."""
    return tuple(
        endpoint
        for endpoint in endpoints
        if model is None or endpoint.models is None or model in endpoint.models
    )


def untried(endpoints: Iterable[Endpoint], tried: Iterable[str]) -> tuple[Endpoint, ...]:
    """Filter: those that this request has not been sent to yet."""
    excluded = frozenset(tried)
    return tuple(endpoint for endpoint in endpoints if endpoint.url not in excluded)


def least_loaded(endpoints: Sequence[Endpoint]) -> Mapping[str, float]:
    """Scorer: 1 for the least loaded, 0 for the most loaded, linear between; all 1 when equally loaded."""
    loads = {endpoint.url: endpoint.load for endpoint in endpoints}
    low, high = min(loads.values(), default=0), max(loads.values(), default=0)
    span = high - low
    return {url: (high - load) / span if span else 1.0 for url, load in loads.items()}


def random_best(endpoints: Sequence[Endpoint], scores: Mapping[str, float], rng: Random) -> Endpoint:
    """Picker: any of those with the highest score, evenly. Raises ValueError without endpoints."""
    best = max(scores[endpoint.url] for endpoint in endpoints)
    ties = [endpoint for endpoint in endpoints if math.isclose(scores[endpoint.url], best, abs_tol=1e-9)]
    return rng.choice(ties)


WeightedScorers = Sequence[tuple[float, Scorer]]
BY_LOAD: WeightedScorers = ((1.0, least_loaded),)


def choose(
    snapshot: Iterable[Endpoint], request: RoutingRequest, rng: Random, scorers: WeightedScorers = BY_LOAD
) -> Endpoint | NoCandidate:
    """The endpoint for this request, or why there is none."""
    known = tuple(snapshot)
    if not known:
        return NoCandidate.NONE_KNOWN
    if not (suitable := serving(known, request.model)):
        return NoCandidate.MODEL_UNKNOWN
    if not (ready := available(suitable)):
        return NoCandidate.NONE_READY
    if not (candidates := untried(ready, request.tried)):
        return NoCandidate.ALL_TRIED
    total = dict.fromkeys((endpoint.url for endpoint in candidates), 0.0)
    for weight, scorer in scorers:
        for url, score in scorer(candidates).items():
            total[url] += weight * score
    return random_best(candidates, total, rng)
