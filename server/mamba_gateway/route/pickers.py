"""Pickers: one endpoint out of those with scores. Pure but for the random generator handed in."""

import math
from collections.abc import Mapping, Sequence
from random import Random

from mamba_gateway.endpoints import Endpoint


def random_best(endpoints: Sequence[Endpoint], scores: Mapping[str, float], rng: Random) -> Endpoint:
    """Any of those with the highest score, evenly. Raises ValueError without endpoints."""
    best = max(scores[endpoint.url] for endpoint in endpoints)
    ties = [endpoint for endpoint in endpoints if math.isclose(scores[endpoint.url], best, abs_tol=1e-9)]
    return rng.choice(ties)
