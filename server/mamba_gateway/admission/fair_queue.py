"""Fairness among API keys: which request is relayed next, and which is dismissed when there are too many.

Requests wait in a queue (start-time fair queueing). All requests of one key form a flow. The tag of a flow is
the number of tokens that it has been served, divided by its weight; the flow with the lowest tag is served
next, and its tag grows by the cost of the request. Within a flow the lowest `priority` is served first, then
the earliest request. A flow that was idle gets no credit for that. When there are too many requests, one is
dismissed of the key that has most requests waiting or sending their body; a request that is being relayed
cannot be dismissed. Used by `admission`. Pure.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request that waits in the queue for a permit."""

    flow: str
    priority: int
    cost: float
    """Expected number of tokens of prompt and answer."""
    model: str | None
    turn: asyncio.Future[None]
    """Future that is completed when the request may be relayed, or fails when the request is dismissed."""
    number: int = 0
    """Position within its flow and priority, the lowest first; 0 = behind all requests that wait."""
    removed: bool = False
    """Whether the request was removed from the queue."""

    @property
    def gone(self) -> bool:
        """Whether the request no longer waits. Of a cancelled request, only `turn` shows that at first."""
        return self.removed or self.turn.done()


@dataclass(slots=True)
class _Flow:
    tag: float
    """Tokens that the flow was served, divided by its weight."""
    heap: list[tuple[int, int, WaitingRequest]] = field(default_factory=list)
    waiting: int = 0

    def first(self) -> WaitingRequest | None:
        while self.heap and self.heap[0][2].gone:
            heapq.heappop(self.heap)
        return self.heap[0][2] if self.heap else None


class FairQueue:
    """Requests that wait for a permit, and the order in which the flows of API keys get permits.

    `weight` returns the weight of a flow, by the name of its key.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._flows: dict[str, _Flow] = {}
        self._virtual_time = 0.0
        """Virtual time of start-time fair queueing: the tag of the flow that was served last."""
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def next_number(self) -> int:
        """Return a position behind all earlier ones."""
        self._number += 1
        return self._number

    def waiting(self) -> Mapping[str, int]:
        """Return the number of waiting requests by flow."""
        return {name: flow.waiting for name, flow in self._flows.items() if flow.waiting}

    def add(self, entry: WaitingRequest) -> None:
        """Add a request to its flow."""
        flow = self._flow(entry.flow)
        if not flow.waiting:
            flow.tag = max(flow.tag, self._virtual_time)
        entry.number = entry.number or self.next_number()
        heapq.heappush(flow.heap, (entry.priority, entry.number, entry))
        flow.waiting += 1
        self._size += 1

    def remove(self, entry: WaitingRequest) -> None:
        """Remove a request without charging its flow for it."""
        if entry.removed:
            return
        entry.removed = True
        flow = self._flows[entry.flow]
        flow.waiting -= 1
        self._size -= 1
        flow.first()
        self._forget(entry.flow, flow)

    def serve(self, name: str, cost: float) -> None:
        """Charge the flow `name` with `cost` for a request that is relayed without having waited."""
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow(self._virtual_time)
        elif flow.tag > self._virtual_time:
            self._virtual_time = flow.tag
        flow.tag = self._virtual_time + cost / self._weight(name)
        if flow.tag <= self._virtual_time:
            self._forget(name, flow)

    def pop(self, has_capacity: Callable[[str | None], bool]) -> WaitingRequest | None:
        """Remove and return the next request whose model has capacity, and charge its flow.

        None means that no waiting request can be served.
        """
        if not self._size:
            return None
        full_models = set[str | None]()
        waiting = [(name, flow) for name, flow in self._flows.items() if flow.waiting]
        for name, flow in sorted(waiting, key=lambda pair: pair[1].tag):
            entry = self._first_servable(flow, has_capacity, full_models)
            if entry is not None:
                self._virtual_time = max(self._virtual_time, flow.tag)
                self.charge(name, entry.cost)
                self.remove(entry)
                return entry
        return None

    def charge(self, name: str, tokens: float) -> None:
        """Charge a flow for tokens beyond the expected cost; a negative number is a refund."""
        flow = self._flow(name)
        flow.tag += tokens / self._weight(name)
        if flow.tag <= self._virtual_time:
            self._forget(name, flow)

    def last_of_longest_flow(self) -> WaitingRequest | None:
        """Return the request to dismiss when the queue is full: the last one of the longest flow.

        The result is None if no request waits.
        """
        name = max(self._flows, key=lambda n: self._flows[n].waiting, default=None)
        return None if name is None else self.last_of(name)

    def last_of(self, name: str) -> WaitingRequest | None:
        """Return the request that would be served last in the flow `name`; None if none waits in it."""
        flow = self._flows.get(name)
        entries = [entry for entry in flow.heap if not entry[2].gone] if flow is not None else []
        return max(entries)[2] if entries else None

    def _first_servable(
        self, flow: _Flow, has_capacity: Callable[[str | None], bool], full_models: set[str | None]
    ) -> WaitingRequest | None:
        first = flow.first()
        if first is not None and first.model not in full_models and has_capacity(first.model):
            return first
        if first is not None:
            full_models.add(first.model)
        for _, _, entry in sorted(flow.heap):
            if entry.gone or entry.model in full_models:
                continue
            if has_capacity(entry.model):
                return entry
            full_models.add(entry.model)
        return None

    def _flow(self, name: str) -> _Flow:
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow(self._virtual_time)
        return flow

    def _forget(self, name: str, flow: _Flow) -> None:
        # A flow that returns gets the virtual time as its tag anyway if its own tag is lower.
        if not flow.waiting and flow.tag <= self._virtual_time:
            del self._flows[name]


SLOW_BODY_SECONDS = 5.0
"""Seconds after which a request that is still sending its body is dismissed in favour of any other request,
even one of its own key."""


@dataclass(slots=True, eq=False)
class Dismissable:
    """A request that may be ended for another key's, because it sends its body or waits for an engine."""

    key: str
    since: float
    """Time of the clock, in seconds, at which the request was admitted."""
    cut: Callable[[], object]
    """Called when the request is dismissed."""
    refusal: Exception | None = None
    """Error for the client of a dismissed request; None = the request was not dismissed."""


class AdmittedRequests:
    """Counts the admitted requests of each API key, and says which to dismiss when the gateway is full."""

    def __init__(self) -> None:
        self.count = 0
        """Number of admitted requests, without those that were dismissed."""
        # Plain dicts are faster: a `Counter` calls a Python method for each key that it lacks.
        self._by_key: dict[str, int] = {}
        self._relayed: dict[str, int] = {}
        self._going: dict[str, int] = {}
        """Number of requests that were dismissed and have not ended yet, by key."""
        self._arriving: dict[Dismissable, None] = {}
        """Requests that are sending their body, the oldest first."""
        self._held: dict[Dismissable, None] = {}
        """Requests that wait for an engine."""

    def enter(self, key: str) -> None:
        """Count a request of the key as admitted."""
        self.count += 1
        self._by_key[key] = self._by_key.get(key, 0) + 1

    def leave(self, key: str) -> None:
        """Count a request of the key as ended."""
        if key in self._going:
            _less(self._going, key)
        else:
            self._forget(key)

    def relay(self, key: str) -> None:
        """Count a request of the key as being relayed."""
        self._relayed[key] = self._relayed.get(key, 0) + 1

    def end_relay(self, key: str) -> None:
        """Count a request of the key as no longer relayed: it waits for an engine again, or has ended."""
        _less(self._relayed, key)

    def begin_body(self, key: str, now: float, cut: Callable[[], object]) -> Dismissable:
        """Record that a request of `key` begins to send its body at `now` seconds; `end` must follow.

        `cut` ends the request if it is dismissed.
        """
        body = Dismissable(key, now, cut)
        self._arriving[body] = None
        return body

    def begin_hold(self, key: str, now: float, cut: Callable[[], object]) -> Dismissable:
        """Record that a request of `key` waits for an engine since `now` seconds; `end` must follow.

        `cut` ends the request if it is dismissed.
        """
        request = Dismissable(key, now, cut)
        self._held[request] = None
        return request

    def end(self, request: Dismissable) -> None:
        """Record that a request can no longer be dismissed."""
        self._arriving.pop(request, None)
        self._held.pop(request, None)

    def greediest(self, newcomer: str) -> str:
        """Return the key with most requests that are not being relayed, counting one more of `newcomer`.

        If several keys have equally many, the key with most requests in total is returned, and `newcomer`
        rather than another.
        """

        def held(key: str) -> tuple[int, int, bool]:
            is_newcomer, count = key == newcomer, self._by_key.get(key, 0)
            waiting = count - self._relayed.get(key, 0)
            return waiting + is_newcomer, count + is_newcomer, is_newcomer

        return max({newcomer, *self._by_key}, key=held)

    def last_dismissable(self, key: str) -> Dismissable | None:
        """Return the key's newest request that sends its body, else the newest that waits for an engine."""
        requests = (*reversed(self._arriving), *reversed(self._held))
        return next((request for request in requests if request.key == key), None)

    def slow_body(self, now: float) -> Dismissable | None:
        """Return the request that has been sending its body for longest, if that takes too long.

        `now` is the time of the clock in seconds.
        """
        oldest = next(iter(self._arriving), None)
        return oldest if oldest is not None and now - oldest.since >= SLOW_BODY_SECONDS else None

    def dismiss(self, key: str) -> None:
        """Count a request of the key as ended, since it is dismissed; its later `leave` changes no count."""
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
