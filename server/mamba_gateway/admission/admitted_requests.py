"""How many requests each key has at the gateway, and which request has to go when there are too many.

Requests that wait or still send their body count, since a relayed request cannot be sent away. The key with
the most of them loses one. Used by `admission`. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass

SLOW_BODY_SECONDS = 5.0
"""A body that has been arriving for so long gives way to any other request, of its own key too."""


@dataclass(slots=True, eq=False)
class Dismissable:
    """One admitted request that can be sent away: its body is arriving, or it waits for an engine."""

    key: str
    since: float
    """Clock time at which the request was admitted, in seconds."""
    cut: Callable[[], object]
    """Called when the request has to go."""
    refusal: Exception | None = None
    """Error for the client of the request; None = the request need not go."""


class AdmittedRequests:
    """The requests of one gateway, by the names of their keys."""

    def __init__(self) -> None:
        self.count = 0
        """Number of admitted requests that stay."""
        # Plain dicts: a `Counter` looks up a key that it lacks by a method of Python.
        self._by_key: dict[str, int] = {}
        self._relayed: dict[str, int] = {}
        self._going: dict[str, int] = {}
        """Number of requests by key that were sent away and have not left yet."""
        self._arriving: dict[Dismissable, None] = {}
        """Requests whose body arrives, the oldest first."""
        self._held: dict[Dismissable, None] = {}
        """Requests that wait for an engine."""

    def enter(self, key: str) -> None:
        """Count a request of the key."""
        self.count += 1
        self._by_key[key] = self._by_key.get(key, 0) + 1

    def leave(self, key: str) -> None:
        """Count a request of the key as gone."""
        if key in self._going:
            _less(self._going, key)
        else:
            self._forget(key)

    def relay(self, key: str) -> None:
        """Count a request of the key as relayed."""
        self._relayed[key] = self._relayed.get(key, 0) + 1

    def end_relay(self, key: str) -> None:
        """Count a relayed request of the key as waiting again, or as ended."""
        _less(self._relayed, key)

    def begin_body(self, key: str, now: float, cut: Callable[[], object]) -> Dismissable:
        """Record that the body of a request arrives; `end` follows."""
        body = Dismissable(key, now, cut)
        self._arriving[body] = None
        return body

    def begin_hold(self, key: str, now: float, cut: Callable[[], object]) -> Dismissable:
        """Record that a request waits for an engine; `end` follows."""
        request = Dismissable(key, now, cut)
        self._held[request] = None
        return request

    def end(self, request: Dismissable) -> None:
        """Record that a request cannot be sent away any more."""
        self._arriving.pop(request, None)
        self._held.pop(request, None)

    def greediest(self, newcomer: str) -> str:
        """Return the key with the most requests that are not relayed, with one more of `newcomer`.

        Of several such keys the one with the most requests of all is returned, and rather `newcomer`.
        """

        def held(key: str) -> tuple[int, int, bool]:
            is_newcomer, count = key == newcomer, self._by_key.get(key, 0)
            waiting = count - self._relayed.get(key, 0)
            return waiting + is_newcomer, count + is_newcomer, is_newcomer

        return max({newcomer, *self._by_key}, key=held)

    def last_dismissable(self, key: str) -> Dismissable | None:
        """Return the last request of the key whose body arrives, else the last that waits for an engine."""
        requests = (*reversed(self._arriving), *reversed(self._held))
        return next((request for request in requests if request.key == key), None)

    def slow_body(self, now: float) -> Dismissable | None:
        """Return the oldest request whose body arrives, if it has been arriving for too long."""
        oldest = next(iter(self._arriving), None)
        return oldest if oldest is not None and now - oldest.since >= SLOW_BODY_SECONDS else None

    def dismiss(self, key: str) -> None:
        """Count a request of the key as gone that was sent away; its `leave` then counts for nothing."""
        self._forget(key)
        self._going[key] = self._going.get(key, 0) + 1

    def _forget(self, key: str) -> None:
        self.count -= 1
        _less(self._by_key, key)


def _less(counts: dict[str, int], key: str) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
