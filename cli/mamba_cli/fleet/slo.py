"""The service level objective of a request."""

from dataclasses import dataclass

from mamba_cli.fleet.request import Request

GOAL = 0.95
"""Share of requests for which a fleet must meet the objective."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Objective in seconds: time to the first token, and mean time per output token after it."""

    ttft: float = 2.0
    tpot: float = 0.1

    def attained(self, request: Request) -> bool:
        """Return whether the request met the objective."""
        if request.first_token_at is None or request.ended_at is None or request.lost:
            return False
        return request.first_token_at - request.arrived_at <= self.ttft and request.token_seconds <= self.tpot
