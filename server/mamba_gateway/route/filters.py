"""Filters: which endpoints may take a request at all. Pure; called by `choose`."""

from collections.abc import Iterable

from mamba_gateway.endpoints import Endpoint


def available(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Those that are ready and stay."""
    return tuple(endpoint for endpoint in endpoints if endpoint.ready and not endpoint.draining)


def serving(endpoints: Iterable[Endpoint], model: str | None) -> tuple[Endpoint, ...]:
    """Those that serve `model`; without a model in the request, all of them: the engine has a default."""
    return tuple(
        endpoint
        for endpoint in endpoints
        if model is None or endpoint.models is None or model in endpoint.models
    )


def untried(endpoints: Iterable[Endpoint], tried: Iterable[str]) -> tuple[Endpoint, ...]:
    """Those that this request has not been sent to yet."""
    seen = frozenset(tried)
    return tuple(endpoint for endpoint in endpoints if endpoint.url not in seen)
