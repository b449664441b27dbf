"""An oracle for the replay: the product's placement and eviction, told when each prefix is asked for next.

It stands in for the ghost tree. What the product estimates from classes and ages (the returns per request
of keeping a checkpoint) is here one over the requests until the next that resumes from it; and checkpoints
are offered just where a later request leaves a prompt. Not the best that could be done, but what foresight
would add to this design.
"""

from collections.abc import Iterator

from benchmarks.cache.history import NEVER, PrefixHistory

from mamba_server.cache.node import Node, Tokens
from mamba_server.cache.state_cache import RadixStateCache

LOOK_AHEAD = 12
"""Next touches that are looked at for one that has no deeper checkpoint to resume from."""


class KnownCheckpoint:
    """The end of one prefix; `rate` is all that eviction asks of it."""

    __slots__ = ("_oracle", "depth", "kind", "node", "prefix", "uses")

    def __init__(self, oracle: "Oracle", prefix: int, depth: int) -> None:
        self._oracle = oracle
        self.prefix = prefix
        self.depth = depth
        self.node: Node | None = None
        self.uses = 1
        self.kind = 0

    @property
    def rate(self) -> float:
        """One over the requests until the next that would resume here."""
        return self._oracle.rate(self)

    def adopt_returns(self, other: "KnownCheckpoint") -> bool:
        """Change nothing: `rate` includes the returns to deeper prefixes that are not cached."""
        return False

    def drop_returns(self) -> None:
        """Change nothing: `rate` follows the cache."""


class KnownMatch:
    """The places of one request's path at which a later one leaves it."""

    def __init__(self, places: list[KnownCheckpoint], tip: KnownCheckpoint) -> None:
        self.places = places
        self.tip = tip
        self.shared = places[-1].depth if places else 0

    def path(self) -> Iterator[KnownCheckpoint]:
        """Yield the places on the path, deepest first."""
        return reversed(self.places)


class Oracle:
    """Knows `history`; counts requests as they come."""

    unknown = 0.0

    def __init__(self, history: PrefixHistory) -> None:
        self.history = history
        self.number = -1
        self._places: dict[int, KnownCheckpoint] = {}

    def observe(self, token_ids: Tokens, salt: str) -> tuple[KnownMatch, list[KnownCheckpoint]]:
        """Take the next request; return its match and the cached places on its path (next use changed)."""
        self.number += 1
        path = self.history.paths[self.number]
        ends = [self._at(path[depth - 1], depth) for depth in self.history.ends(self.number)]
        limit = self.history.limits[self.number]
        tip = self._at(path[limit - 1], limit) if limit else self._at(-1, 0)
        places = (self._places.get(prefix) for prefix in path)
        return KnownMatch(ends, tip), [place for place in places if place and place.node]

    def ghost_at(self, match: KnownMatch, depth: int, place: object, turn: int = 0) -> KnownCheckpoint:
        """Return the place at page `depth` of the latest request."""
        return self._at(self.history.paths[self.number][depth - 1], depth)

    def observe_answer(self, match: KnownMatch, token_ids: Tokens, salt: str) -> KnownCheckpoint | None:
        """Ignore the answer: nothing is known beyond the prompt."""
        depth = len(token_ids) // self.history.block
        path = self.history.paths[self.number]
        return self._at(path[depth - 1], depth) if depth <= len(path) else None

    def _at(self, prefix: int, depth: int) -> KnownCheckpoint:
        return self._places.setdefault(prefix, KnownCheckpoint(self, prefix, depth))

    def rate(self, place: KnownCheckpoint) -> float:
        """Return the expected uses per request of a checkpoint at `place`."""
        at = self.number
        if place.prefix < 0:
            return 0.0
        for _ in range(LOOK_AHEAD):
            at = self.history.next(place.prefix, at)
            if at == NEVER:
                return 0.0
            if place.depth <= self.history.limits[at] and not self._deeper(place, at):
                return 1 / (at - self.number)
        return 0.0

    def _deeper(self, place: KnownCheckpoint, number: int) -> bool:
        """Return whether request `number` finds a cached checkpoint below `place`."""
        path = self.history.paths[number][place.depth : self.history.limits[number]]
        return any((cached := self._places.get(prefix)) and cached.node for prefix in path)


def foretold(cache: RadixStateCache, history: PrefixHistory) -> RadixStateCache:
    """Return `cache` with true estimates of returns."""
    oracle = Oracle(history)
    cache.donation.ghosts = oracle  # type: ignore[assignment]
    cache.tree.eviction.use_forecast(oracle, cache.arena.pages_per_slab)  # type: ignore[arg-type]
    return cache
