"""`StateTransfers`: what the core needs of the states that move into and out of its engine.

`mamba_server.engine.transfers` implements it; the core calls it between two steps, and never waits in a call.
"""

from typing import Protocol

from mamba_server.cache import Quarantined, Tokens
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import Fetch, HandOver

NO_HAND_OVER = HandOver("", 0, 0.0)


class StateTransfers(Protocol):
    """Fetches states from other engines and tiers, and keeps states for others, between an engine's steps."""

    def expect(self, group: list[Sequence], fetch: Fetch | None) -> bool:
        """Begin to fetch the state of the group's prompt.

        Return False if the group need not wait: there is no source, or computing is faster than fetching.
        """
        ...

    def arrived(self) -> list[list[Sequence]]:
        """Return the groups whose state has come or will not come. Called once before each step."""
        ...

    def cancel(self, request_id: str) -> None:
        """Give up the state for a request that has ended."""
        ...

    def export(self, token_ids: Tokens, salt: str) -> HandOver:
        """Keep the deepest state of a prompt for the engine that is to fetch it."""
        ...

    def release(self, export: str) -> bool:
        """End an export; return whether there was one."""
        ...

    def withdraw(self, quarantined: list[Quarantined]) -> None:
        """Remove copies of wrong checkpoints, and of checkpoints that continue them, from the tiers."""
        ...

    @property
    def changes(self) -> int:
        """Number of changes of the cache's memory by transfers."""
        ...

    def counters(self) -> dict[str, float]:
        """Return the counters by metric name."""
        ...

    def gauges(self) -> dict[str, float]:
        """Return the gauges by metric name."""
        ...

    def take_seconds(self) -> list[tuple[str, float]]:
        """Return and clear direction and seconds of the transfers that ended."""
        ...

    def close(self, *, save: bool) -> None:
        """Stop all transfers, at the end of the process. `save`: the cache's states are worth keeping."""
        ...
