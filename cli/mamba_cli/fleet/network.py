"""`Network`: how long states take to travel between simulated engines. Pure."""

from dataclasses import dataclass

from mamba_cli.fleet.engine_profile import EngineProfile


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Speed of the link of each engine, in both directions at once."""

    bytes_per_second: float = 10e9
    """What is left of 100 Gbit/s for the bytes of states."""
    latency: float = 0.001
    """Seconds of a transfer without any bytes."""


class Network:
    """Links of engines by name; each carries one state at a time in each direction."""

    def __init__(self, speed: LinkSpeed, profile: EngineProfile) -> None:
        self._speed, self._profile = speed, profile
        self._outgoing: dict[str, float] = {}
        self._incoming: dict[str, float] = {}

    def size(self, tokens: int) -> float:
        """Return the bytes of a state with the pages of `tokens` tokens."""
        profile = self._profile
        pages = tokens / profile.tokens_per_state if profile.tokens_per_state else 0.0
        return profile.state_bytes * (1.0 + pages)

    def send(self, source: str, reader: str, tokens: int, now: float) -> float:
        """Take the links of both engines for one state; return the second at which it has arrived."""
        begin = max(now, self._outgoing.get(source, 0.0), self._incoming.get(reader, 0.0))
        end = begin + self._speed.latency + self.size(tokens) / self._speed.bytes_per_second
        self._outgoing[source] = self._incoming[reader] = end
        return end
