"""How fast one engine is, by what all like it measured: a difference counts where it is sure. Pure.

Engines alike measure themselves unlike: by the steps they happened to have, a slow first one, what ran beside
them. Who is thought slow is sent nothing, measures nothing, and stays slow: its memory is lost to the fleet.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from mamba_gateway.endpoints.engine_speed import EngineSpeed

SURE = 4.0
"""Standard errors by which an engine differs from the others before any of that counts."""
LEAST_ERROR = 0.01
"""That any speed is taken to have: no engine outweighs all others."""


def pooled_speed(own: EngineSpeed, fleet: Iterable[EngineSpeed]) -> EngineSpeed:
    """`own`, drawn to the mean of the `fleet` (all that serve the same, itself among them) by how unsure it
    is: all the way within `SURE` errors, and less and less beyond (as James and Stein do). Whoever does not
    say how sure it is, is believed and no measure of others."""
    if not own.error:
        return own
    total = weights = 0.0
    for each in fleet:
        if not each.error:
            continue
        weight = 1 / max(each.error, LEAST_ERROR) ** 2
        total, weights = total + weight * math.log(each.tokens_per_second), weights + weight
    apart = math.log(own.tokens_per_second) - total / weights
    unsure = SURE * own.error
    kept = 1 - (unsure / apart) ** 2 if abs(apart) > unsure else 0.0
    return replace(own, tokens_per_second=math.exp(total / weights + kept * apart))
