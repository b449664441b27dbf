"""A request on its way to an engine: what gateway and API do for it takes time, and may share cores."""

from dataclasses import dataclass

from mamba_cli.fleet.request import Request


@dataclass(slots=True, eq=False)
class RequestTransit:
    """Over at second `end`, as things are; `version`: of `end`, an event for another one is out of date."""

    request: Request
    end: float
    version: int = 0

    def stretch(self, ratio: float, now: float) -> None:
        """What is left takes `ratio` times as long."""
        self.end = now + (self.end - now) * ratio
        self.version += 1
