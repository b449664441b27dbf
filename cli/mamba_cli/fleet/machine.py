"""What engines of a fleet share: the way of requests to them and back, and the cores of a machine."""

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Machine:
    """By default nothing: no time between a request and its engine, and cores for all."""

    cores: float = math.inf
    used: float = 1.0
    """Cores that a request on its way, or an engine with work, keeps busy."""
    transit_seconds: float = 0.0
    """Of a time to the first token outside of engines, whatever is asked: gateway, API, first chunk."""
    transit_token_seconds: float = 0.0
    """And for each token of its prompt, resumed ones too: it is read, checked and looked up."""
    jitter: tuple[float, ...] = ()
    """Seconds by which that time differs from one request to the next, each as likely as the others."""

    @property
    def shared(self) -> bool:
        """Whether one who works can slow another."""
        return math.isfinite(self.cores)

    def slowness(self, active: int) -> float:
        """How many times as long everything takes while so many are active: the cores are shared evenly."""
        return max(1.0, active * self.used / self.cores)

    def transit(self, tokens: int, rng: Random) -> float:
        """Seconds of one request with a prompt of so many tokens."""
        jitter = rng.choice(self.jitter) if self.jitter else 0.0
        return max(0.0, self.transit_seconds + tokens * self.transit_token_seconds + jitter)
