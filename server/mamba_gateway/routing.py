"""Choose: filter -> score -> pick over one frozen snapshot. Pure; the relay calls it once per attempt.

A further scorer (resumable prefixes) is one more entry of the weighted list.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from mamba_gateway.endpoints import Endpoint
from mamba_gateway.route.filters import available, serving, untried
from mamba_gateway.route.pickers import random_best
from mamba_gateway.route.scorers import Scorer, least_loaded


class Nothing(Enum):
    """Why no endpoint was chosen."""

    NONE_KNOWN = "no engine is known"
    NONE_READY = "no engine that may serve the model is ready"
    MODEL_UNKNOWN = "no engine serves the model"
    ALL_TRIED = "every engine that could take the request was tried"


@dataclass(frozen=True, slots=True)
class Ask:
    """What routing reads of a request."""

    model: str | None
    tried: tuple[str, ...] = ()
    """URLs that failed for this request."""


Weighted = Sequence[tuple[float, Scorer]]
BY_LOAD: Weighted = ((1.0, least_loaded),)


def choose(
    snapshot: Iterable[Endpoint], ask: Ask, rng: Random, scorers: Weighted = BY_LOAD
) -> Endpoint | Nothing:
    """The endpoint for this request, or why there is none."""
    known = tuple(snapshot)
    if not known:
        return Nothing.NONE_KNOWN
    if not (fit := serving(known, ask.model)):
        return Nothing.MODEL_UNKNOWN
    if not (ready := available(fit)):
        return Nothing.NONE_READY
    if not (left := untried(ready, ask.tried)):
        return Nothing.ALL_TRIED
    total = dict.fromkeys((endpoint.url for endpoint in left), 0.0)
    for weight, scorer in scorers:
        for url, score in scorer(left).items():
            total[url] += weight * score
    return random_best(left, total, rng)
