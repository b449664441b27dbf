"""`RequestLane`: what serves the requests of one model, from their turn to the last byte of their answer.

A gateway of one model has one lane. A gateway of several models has one for each, so that no request waits
for engines, places or limits of another model; `Lanes` chooses the lane by the name in the body.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mamba_edge.api_keys import KeyFile
from mamba_edge.usage.prices import Prices
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.relay.relay import Relay

NO_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class RequestLane:
    """Relay, queue and limits that serve the requests for one model, which wait for no other model's."""

    relay: Relay
    admission: Admission
    limiter: RateLimiter
    prompts: PromptReader | None
    """Reader of prompts; None = routing and limits need none."""
    backend_keys: KeyFile | None
    """Keys for the engines, of which the first is sent; None = no key is sent."""
    prices: Prices = NO_PRICES
    """Prices of the use of the model's engines."""
    ledger_name: str | None = None
    """Name of the model in the ledger, where the settings say it."""

    def prices_of(self, model: str | None) -> Prices:
        """Return the prices of a request; `model` names it where the settings name no model."""
        return self.prices.of(self.ledger_name or model or "")


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """The `RequestLane` that serves one request, and the names of the request's model."""

    lane: RequestLane
    model: str
    """Name of the model that serves the request, as clients know it."""
    engine_name: str
    """Name of the model at its engines."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Headers of the answer that say which model serves it, where the request named another."""


class Lanes(Protocol):
    """Finds the `RequestLane` for a request, by the model that it names."""

    def choose(self, model: str | None, key: str) -> LaneChoice:
        """Return the lane for a request of `key` that names `model`. Raises an ApiError for the client."""

    def cancel(self) -> None:
        """End streams that are aborted from now on with an error event."""
