"""What this gateway sent where: an engine that got a prompt will soon be able to resume its prefixes.

Knowledge of its own, ahead of what engines publish and in its place where nothing is published. A guess, so
it is bounded and expires; the engine looks for itself in any case.
"""

from collections import OrderedDict

from mamba_gateway.clock import Clock
from mamba_gateway.prompt_prefix import PromptPrefix

MOST = 50_000
"""Prefixes that are remembered; the least recently used go first."""
MOST_ENGINES = 4
"""Of one prefix; the oldest goes first."""


class RecentPrefixes:
    """Of one gateway. Engines are named as their endpoints are."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        self._clock, self._most = clock, most
        self._known: OrderedDict[bytes, dict[str, float]] = OrderedDict()

    def note(self, prompt: PromptPrefix, engine: str) -> None:
        """`engine` gets the prompt."""
        now = self._clock()
        for _, digest in prompt.digests:
            engines = self._known.setdefault(digest, {})
            engines.pop(engine, None)
            engines[engine] = now
            if len(engines) > MOST_ENGINES:
                del engines[next(iter(engines))]
            self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def resumable(self, prompt: PromptPrefix, lifetime: float) -> dict[str, int]:
        """By engine, the tokens of the longest prefix that it got within `lifetime` seconds."""
        since = self._clock() - lifetime
        found: dict[str, int] = {}
        for depth, digest in reversed(prompt.digests):
            for engine, at in self._known.get(digest, {}).items():
                if at > since:
                    found.setdefault(engine, depth)
        return found

    def __len__(self) -> int:
        return len(self._known)
