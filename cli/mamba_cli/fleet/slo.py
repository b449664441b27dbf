"""What a request is promised."""

from dataclasses import dataclass

from mamba_cli.fleet.request import Request

GOAL = 0.95
"""Share of requests that a fleet is to keep its promises to."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token, and per output token after it on average."""

    ttft: float = 2.0
    tpot: float = 0.1

    def attained(self, request: Request) -> bool:
        """Whether the request got what it was promised."""
        if request.first_token_at is None or request.ended_at is None or request.lost:
            return False
        return request.first_token_at - request.arrived_at <= self.ttft and request.token_seconds <= self.tpot
