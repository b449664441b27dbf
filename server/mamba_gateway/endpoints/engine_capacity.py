"""How many more requests the engines behind a gateway are to be given. Pure.

An engine's own queue knows nothing of keys: what waits there is out of reach of any fairness. So it is given
what it can run and one step's worth more, which begins the moment something ends.
"""

import math
from collections.abc import Iterable

from mamba_gateway.endpoints.endpoint import Endpoint

ENGINE_QUEUE = 8
"""Requests that may wait at an engine: as many as one of its steps starts at most."""


def engine_capacity(endpoints: Iterable[Endpoint], model: str | None) -> float:
    """For `model`, over all engines; without a limit where one does not say how many it can run, and where
    none is there at all, since a request is then held, or refused, by the relay."""
    free, found = 0.0, False
    for one in endpoints:
        if one.ready and not one.draining and (model is None or one.models is None or model in one.models):
            free, found = free + _places(one), True
    return free if found else math.inf


def _places(endpoint: Endpoint) -> float:
    if endpoint.full:
        return 0.0
    most = endpoint.max_running
    if most is None:
        return math.inf
    if _short_of_memory(endpoint):
        most = min(most, endpoint.running)
    return most + ENGINE_QUEUE - endpoint.load


def _short_of_memory(endpoint: Endpoint) -> bool:
    # What waits there does not fit, so no more will run than do.
    room, queued = endpoint.room, endpoint.queued_tokens
    return endpoint.waiting > 0 and room is not None and queued is not None and room < queued
