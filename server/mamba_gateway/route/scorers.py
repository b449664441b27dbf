"""Scorers: how well each endpoint suits a request, from 0 (worst) to 1 (best). Pure; called by `choose`.

A scorer sees only endpoints that passed the filters. Weights live in `choose`, not here.
"""

from collections.abc import Callable, Mapping, Sequence

from mamba_gateway.endpoints import Endpoint

Scorer = Callable[[Sequence[Endpoint]], Mapping[str, float]]
"""From the endpoints to one score in [0, 1] for each URL."""


def least_loaded(endpoints: Sequence[Endpoint]) -> Mapping[str, float]:
    """1 for the least loaded, 0 for the most loaded, linear between; all 1 when equally loaded."""
    loads = {endpoint.url: endpoint.load for endpoint in endpoints}
    low, high = min(loads.values(), default=0), max(loads.values(), default=0)
    span = high - low
    return {url: (high - load) / span if span else 1.0 for url, load in loads.items()}
