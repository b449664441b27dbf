"""How many requests each key has at the gateway, and whose has to go when one more comes than may be.

Counted are those that wait or still send their body, since one that is relayed cannot be asked to go. The key
with the most of them loses one. Used by `admission`. Pure.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

SLOW_BODY_SECONDS = 5.0
"""A body that has been arriving for so long gives way to any other request, of its own key too."""


@dataclass(slots=True, eq=False)
class Dismissable:
    """One admitted request that can be told to go: its body has not arrived whole, or it waits for an engine
    to be there."""

    key: str
    since: float
    """Clock time at which it was admitted, in seconds."""
    cut: Callable[[], object]
    """Called when the request has to go."""
    refusal: Exception | None = None
    """What its client is to be told; None = it need not go."""


class AdmittedRequests:
    """The requests of one gateway, by the names of their keys."""

    def __init__(self) -> None:
        self.count = 0
        """Requests that are there and stay."""
        self._by_key: Counter[str] = Counter()
        self._relayed: Counter[str] = Counter()
        self._going: Counter[str] = Counter()
        """Requests that were told to go and have not left yet."""
        self._arriving: dict[Dismissable, None] = {}
        """The oldest first."""
        self._held: dict[Dismissable, None] = {}
        """Those that wait for an engine to be there."""

    def enter(self, key: str) -> None:
        """Count a request of the key."""
        self.count += 1
        self._by_key[key] += 1

    def leave(self, key: str) -> None:
        """Forget one."""
        if key in self._going:
            _less(self._going, key)
        else:
            self._forget(key)

    def relay(self, key: str) -> None:
        """Count one of them as relayed."""
        self._relayed[key] += 1

    def end_relay(self, key: str) -> None:
        """Count one of them as waiting again, or at its end."""
        _less(self._relayed, key)

    def begin_body(self, key: str, now: float, cut: Callable[[], object]) -> Dismissable:
        """Note that the body of a request arrives; `end` follows."""
        body = Dismissable(key, now, cut)
        self._arriving[body] = None
        return body

    def begin_hold(self, key: str, now: float, cut: Callable[[], object]) -> Dismissable:
        """Note that a request waits for an engine; `end` follows."""
        request = Dismissable(key, now, cut)
        self._held[request] = None
        return request

    def end(self, request: Dismissable) -> None:
        """Note that a request cannot be told to go any more."""
        self._arriving.pop(request, None)
        self._held.pop(request, None)

    def greediest(self, newcomer: str) -> str:
        """The key with the most requests that are not relayed, with one more of `newcomer`; of several keys
        the one with the most of all requests, and rather `newcomer`."""

        def held(key: str) -> tuple[int, int, bool]:
            one, count = key == newcomer, self._by_key[key]
            return count - self._relayed[key] + one, count + one, one

        return max({newcomer, *self._by_key}, key=held)

    def last_dismissable(self, key: str) -> Dismissable | None:
        """The request of the key that came last, of those whose body arrives, else of those that are held."""
        requests = (*reversed(self._arriving), *reversed(self._held))
        return next((one for one in requests if one.key == key), None)

    def slow_body(self, now: float) -> Dismissable | None:
        """The oldest body, if it has been arriving for too long."""
        oldest = next(iter(self._arriving), None)
        return oldest if oldest is not None and now - oldest.since >= SLOW_BODY_SECONDS else None

    def dismiss(self, key: str) -> None:
        """Count a request of the key as gone that has been told to go; its `leave` counts for nothing."""
        self._forget(key)
        self._going[key] += 1

    def _forget(self, key: str) -> None:
        self.count -= 1
        _less(self._by_key, key)


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
