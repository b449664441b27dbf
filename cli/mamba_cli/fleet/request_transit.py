"""A request in transit to an engine: gateway and API take time for it, and may share cores with engines."""

from dataclasses import dataclass

from mamba_cli.fleet.request import Request


@dataclass(slots=True, eq=False)
class RequestTransit:
    """Transit of one request, which ends at second `end` unless it is stretched.

    An event for another `version` of `end` is out of date.
    """

    request: Request
    end: float
    version: int = 0

    def stretch(self, ratio: float, now: float) -> None:
        """Make the rest of the transit take `ratio` times as long."""
        self.end = now + (self.end - now) * ratio
        self.version += 1
