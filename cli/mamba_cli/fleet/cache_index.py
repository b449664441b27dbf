"""`CacheIndex`: prefix index of simulated gateways that reads the caches of simulated engines directly."""

from collections.abc import Mapping
from typing import Literal, Protocol

from mamba_cli.fleet.prompt_blocks import Tokens
from mamba_prefix.page_chain import PageTerms
from mamba_prefix.page_rungs import rungs
from mamba_prefix.prefix_index import NOTHING, Depths, PrefixIndex
from mamba_server.cache.state_cache import RadixStateCache

Knowledge = Literal["load", "attention", "own", "resumable"]
"""Knowledge by which a simulated gateway routes: load = load only; attention = attention pages that an engine
holds; own = prompts that the gateway sent itself; resumable = prefixes that an engine can resume."""


EVERY_STEP = 2**62
"""Step later than any other, so that everything in a tree counts as committed and published."""


class CacheOwner(Protocol):
    """A simulated engine, as an index of caches reads it."""

    @property
    def cache(self) -> RadixStateCache:
        """State cache of the engine."""


class CacheIndex(PrefixIndex):
    """Prefix index that reads the caches of engines as a gateway that follows these engines would see them.

    The mapping `engines`, by name, may change at any time.
    """

    def __init__(self, engines: Mapping[str, CacheOwner], knowledge: Knowledge) -> None:
        super().__init__()
        self._engines, self._attention = engines, knowledge == "attention"
        self.state = "off" if knowledge == "own" else "following"

    def depths(self, token_ids: Tokens, salt: str, terms: PageTerms | None = None) -> Depths:
        if self.state == "off":
            return NOTHING
        engines = self._engines.items()
        matches = {name: engine.cache.match(token_ids, salt, EVERY_STEP) for name, engine in engines}
        if self._attention:
            attention = {name: match.kv_depth for name, match in matches.items()}
            return Depths(attention, attention)
        return Depths(
            {name: match.resumable for name, match in matches.items()},
            {name: self._published_depth(name, match.kv_depth) for name, match in matches.items()},
        )

    def _published_depth(self, name: str, depth: int) -> int:
        page = self._engines[name].cache.page_size
        return _last_rung(depth // page) * page


def _last_rung(pages: int) -> int:
    return max(rungs(0, pages).tolist(), default=0)
