"""Admission: limits the number of requests in the gateway, and decides which one is relayed next.

A request is admitted before its body is read, so that memory is bounded. The request then waits for a permit,
which it gets when an engine has room for it; `fair_queue` decides the order. A request that has to wait for
an engine to appear returns its permit meanwhile. Called by the proxy endpoint and the endpoint picker. Knows
nothing of HTTP.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, Self

import msgspec

from mamba_edge.errors import TooManyRequests
from mamba_edge.exchange.request_arrivals import RequestArrivals
from mamba_gateway.admission.fair_queue import AdmittedRequests, Dismissable, FairQueue, WaitingRequest
from mamba_gateway.errors import GatewayDraining

DRAINING = "the gateway is draining: it finishes what runs and takes nothing new; send the request again"


class EngineCapacity(Protocol):
    """Returns how many more requests for a model can be sent to the engines now."""

    def __call__(self, model: str | None) -> float: ...


class OnRefused(Protocol):
    """Called for each refused request with the cause ("full" or "timeout") and the name of its key."""

    def __call__(self, cause: str, key: str) -> None: ...


def retry_after(queued: int, permits: int, service_seconds: float) -> float:
    """Return the seconds until a permit is likely to be free for a client that tries again.

    The estimate is the number of requests that wait, with this one, divided by the permits, times the mean
    duration of a request. It is a whole number from 1 to 60, since `Retry-After` has no fractions.
    """
    return float(min(60, max(1, math.ceil((queued + 1) * service_seconds / permits))))


class PermitRequest(msgspec.Struct, frozen=True):
    """Holds what the queue must know of a request that asks for a permit."""

    key: str = ""
    """Name of the API key of the request."""
    priority: int = 0
    """Priority among the requests of the same key; a lower number is served first."""
    cost: float = 1.0
    """Expected number of tokens of prompt and answer."""
    model: str | None = None


ANONYMOUS = PermitRequest()
"""Description of a request about which nothing is known."""


class Permit:
    """One request's right to be relayed to an engine, of which a gateway gives out a limited number."""

    __slots__ = (
        "_acquired_at",
        "_admission",
        "_claim",
        "_computing",
        "_held",
        "_number",
        "_sent",
        "waited",
        "was_held",
    )

    def __init__(self, admission: "Admission", claim: PermitRequest, number: int) -> None:
        self._admission, self._claim, self._number = admission, claim, number
        self.waited = self._acquired_at = 0.0
        """Seconds for which the request waited for its turn."""
        self._sent = self._computing = False
        self._held = False
        """Whether the permit is returned at the moment, because the request waits for an engine to appear."""
        self.was_held = False
        """Whether the permit was returned at any time."""

    def try_acquire(self) -> bool:
        """Acquire the permit without waiting. If the result is True, `release` must follow.

        The result is False if no permit is free or other requests wait; `acquire` then waits.
        """
        self._acquired_at = self._admission.clock()
        return self._admission.try_acquire(self._claim)

    async def acquire(self) -> None:
        """Wait for the permit after `try_acquire` failed. `release` must follow, unless this raises."""
        requested_at = self._acquired_at
        await self._admission.acquire(self._claim, self._number)
        self._acquired_at = self._admission.clock()
        self.waited = self._acquired_at - requested_at

    def sent(self) -> None:
        """Record that the request was sent to an engine, in whose reported load it counts from now on."""
        if not self._sent:
            self._sent = True
            self._admission.count_sent(self._claim.model)

    def computing(self) -> None:
        """Record that a prefill engine computes the prompt.

        The room at the decode engine, which will write the answer, stays reserved.
        """
        self._computing = True

    @property
    def reached_engine(self) -> bool:
        """Whether the request was sent to an engine and, as far as the gateway knows, is still there."""
        return (self._sent or self._computing) and not self._held

    def hold(self) -> None:
        """Return the permit while the request waits for an engine. `resume` or `release` must follow."""
        if not self._held:
            self._held = self.was_held = True
            self._admission.give_back(self._claim, sent=self._sent)

    async def while_held(self, waiting: Awaitable[None]) -> None:
        """Wait until `waiting` is done, that is, until an engine may have appeared; the permit is returned.

        Raises `TooManyRequests` if the request is dismissed to make room for a request of another key.
        """
        self.hold()
        task = asyncio.current_task()
        assert task is not None
        with self._admission.holds(self._claim.key, task.cancel) as held:
            try:
                await waiting
            except asyncio.CancelledError:
                if held.refusal is None:
                    raise
                task.uncancel()
                raise held.refusal from None

    async def resume(self, seconds: float) -> None:
        """Wait at most `seconds` for the permit again, at the request's earlier position in the queue.

        Raises `TooManyRequests` when the time is over.
        """
        if not self._held:
            return
        if not self._admission.try_acquire(self._claim):
            await self._admission.acquire(self._claim, self._number, seconds, shed=False)
        self._held = self._sent = self._computing = False
        self._acquired_at = self._admission.clock()

    def release(self) -> None:
        """Return the permit for good, when the request has ended."""
        if self._held:
            return
        self.sent()
        self._admission.release(self._claim.key, self._acquired_at)

    async def __aenter__(self) -> Self:
        if not self.try_acquire():
            await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def used(self, tokens: float) -> None:
        """Charge the key of the request for the difference between `tokens` and the expected number."""
        paid = 0.0 if self._held else self._claim.cost
        self._admission.charge(self._claim.key, tokens - paid)


class Admission:
    """Decides which requests one gateway relays now, which wait, and which it refuses.

    It relays at most `max_in_flight` requests and lets `max_queue` more wait. A request waits for a permit at
    most `queue_timeout` seconds. `weight` returns the weight of a key by its name.
    """

    def __init__(
        self,
        max_in_flight: int,
        max_queue: int,
        queue_timeout: float,
        clock: Callable[[], float],
        *,
        capacity: EngineCapacity = lambda _: math.inf,
        weight: Callable[[str], float] = lambda _: 1.0,
        on_refused: OnRefused = lambda _cause, _key: None,
    ) -> None:
        self.max_in_flight, self.max_queue, self.queue_timeout = max_in_flight, max_queue, queue_timeout
        self.draining = False
        self.arrivals = RequestArrivals()
        self.admitted = 0
        """Number of admitted requests that have not ended: relayed, waiting, or still sending their body."""
        self.in_flight = 0
        self._admitted = AdmittedRequests()
        self._unsent: dict[str | None, int] = {}
        """Number of requests with a permit that were not sent to an engine yet, by model."""
        self._queue = FairQueue(weight)
        self._capacity, self._on_refused = capacity, on_refused
        self.clock = clock
        self._service_seconds = 1.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Number of admitted requests that are not being relayed."""
        return self.admitted - self.in_flight

    @property
    def unsent(self) -> int:
        """Number of requests with a permit that were not sent to an engine yet."""
        return sum(self._unsent.values())

    def waiting(self) -> dict[str, int]:
        """Return the number of requests that wait for a permit, by name of their key."""
        return dict(self._queue.waiting())

    def admit(self, key: str = "") -> "_AdmissionScope":
        """Count a request as admitted for the duration of the block.

        Raises `TooManyRequests` if the gateway is full, `GatewayDraining` if it is shutting down.
        """
        return _AdmissionScope(self, key)

    def enter(self, key: str) -> None:
        """Admit a request; `leave` must follow. Raises the errors of `admit`."""
        self.arrivals.record()
        if self.draining:
            raise GatewayDraining(DRAINING)
        if self._admitted.count >= self.max_in_flight + self.max_queue:
            self._make_room(key)
        self._admitted.enter(key)
        self.admitted += 1
        if self.admitted == 1:
            self._idle.clear()

    def leave(self, key: str) -> None:
        """Record that an admitted request has ended."""
        self._admitted.leave(key)
        self.admitted -= 1
        if self.admitted == 0:
            self._idle.set()

    @contextlib.contextmanager
    def body_arrives(self, key: str, cut: Callable[[], object]) -> Iterator[Dismissable]:
        """Let a request that is reading its body in the block be dismissed.

        If the request is dismissed, `cut` is called; `refusal` of the yielded object then holds the error for
        the client.
        """
        body = self._admitted.begin_body(key, self.clock(), cut)
        try:
            yield body
        finally:
            self._admitted.end(body)

    @contextlib.contextmanager
    def holds(self, key: str, cut: Callable[[], object]) -> Iterator[Dismissable]:
        """Let a request that waits for an engine in the block be dismissed, as `body_arrives` does."""
        request = self._admitted.begin_hold(key, self.clock(), cut)
        try:
            yield request
        finally:
            self._admitted.end(request)

    def permit(self, claim: PermitRequest = ANONYMOUS) -> Permit:
        """Return a permit, which a request needs while it is relayed.

        Entering it raises `TooManyRequests` if no permit became free in time, or if the queue is full and the
        key of the request has most requests in it. `claim` holds what the queue must know of the request.
        """
        return Permit(self, claim, self._queue.next_number())

    def try_acquire(self, claim: PermitRequest) -> bool:
        """Take a permit without waiting, and return whether one was free and no other request waits."""
        if self._queue or self.in_flight >= self.max_in_flight or not self._has_capacity(claim.model):
            return False
        self._queue.serve(claim.key, claim.cost)
        self._grant(claim.key, claim.model)
        return True

    async def acquire(
        self, claim: PermitRequest, number: int = 0, seconds: float | None = None, *, shed: bool = True
    ) -> None:
        """Wait for a permit for at most `seconds`. `release` must follow, unless this raises.

        `number` is the position of the request among the waiting requests of its key. With `shed`, one
        request is dismissed if too many wait. If `seconds` is None, the limit is `queue_timeout`.
        """
        turn = asyncio.get_running_loop().create_future()
        entry = WaitingRequest(claim.key, claim.priority, claim.cost, claim.model, turn, number)
        self._queue.add(entry)
        self.dispatch()
        if shed and len(self._queue) > self.max_queue:
            self._shed()
        await self._wait_for_turn(entry, self.queue_timeout if seconds is None else seconds)

    def count_sent(self, model: str | None) -> None:
        """Record that a request for the model was sent to an engine, whose load includes it from now on."""
        left = self._unsent.get(model, 0) - 1
        if left:
            self._unsent[model] = left
        else:
            del self._unsent[model]

    def give_back(self, claim: PermitRequest, *, sent: bool) -> None:
        """Return the permit of a request that continues to wait, and refund the tokens to its key.

        `sent` says whether the request was counted as sent to an engine.
        """
        if not sent:
            self.count_sent(claim.model)
        self._queue.charge(claim.key, -claim.cost)
        self._release(claim.key)

    def release(self, key: str, begin: float) -> None:
        """Return a permit for good.

        `begin` is the time of the clock, in seconds, at which it was acquired.
        """
        self._release(key)
        self._service_seconds += 0.1 * (self.clock() - begin - self._service_seconds)

    def dispatch(self) -> None:
        """Grant permits to waiting requests. Called when a request has ended or a probe found capacity."""
        while (
            self.in_flight < self.max_in_flight and (entry := self._queue.pop(self._has_capacity)) is not None
        ):
            self._grant(entry.flow, entry.model)
            entry.turn.set_result(None)

    def charge(self, key: str, tokens: float) -> None:
        """Charge a key for tokens used beyond the expected number; a negative number is a refund."""
        self._queue.charge(key, tokens)

    async def idle(self) -> None:
        """Wait until no request is admitted."""
        await self._idle.wait()

    def _has_capacity(self, model: str | None) -> bool:
        unsent = self._unsent
        # Requests that name no model may go to any engine.
        before = sum(unsent.values()) if model is None else unsent.get(model, 0) + unsent.get(None, 0)
        return self._capacity(model) - before >= 1

    def _grant(self, key: str, model: str | None) -> None:
        self.in_flight += 1
        self._unsent[model] = self._unsent.get(model, 0) + 1
        self._admitted.relay(key)

    async def _wait_for_turn(self, entry: WaitingRequest, seconds: float) -> None:
        try:
            if not entry.turn.done():
                async with asyncio.timeout(seconds):
                    await entry.turn
            entry.turn.result()
        except TimeoutError:
            self._abandon(entry)
            self._on_refused("timeout", entry.flow)
            message = f"the request waited {seconds:.3g} s for its turn; retry later"
            raise TooManyRequests(message, retry_after=self._retry_after()) from None
        except asyncio.CancelledError:
            self._abandon(entry)
            raise

    def _abandon(self, entry: WaitingRequest) -> None:
        turn = entry.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            # The request got its permit in the same moment, so the permit is returned.
            self.count_sent(entry.model)
            self._release(entry.flow)
        else:
            self._queue.remove(entry)

    def _make_room(self, newcomer: str) -> None:
        """Dismiss one request, so that a request of the key `newcomer` can be admitted.

        Raises TooManyRequests if the newcomer itself is the request to be dismissed.
        """
        admitted = self._admitted
        key = admitted.greediest(newcomer)
        if key != newcomer and (body := admitted.last_dismissable(key)) is not None:
            self._cut(body)
        elif key != newcomer and (entry := self._queue.last_of(key)) is not None:
            admitted.dismiss(key)
            self._refuse(entry)
        elif (body := admitted.slow_body(self.clock())) is not None:
            self._cut(body)
        else:
            self._on_refused("full", newcomer)
            raise self._full()

    def _cut(self, body: Dismissable) -> None:
        self._admitted.end(body)
        self._admitted.dismiss(body.key)
        self._on_refused("full", body.key)
        body.refusal = self._full()
        body.cut()

    def _shed(self) -> None:
        # The key with the longest queue loses a request, so that no key can fill the queue of all others.
        entry = self._queue.last_of_longest_flow()
        if entry is not None:
            self._refuse(entry)

    def _refuse(self, entry: WaitingRequest) -> None:
        self._queue.remove(entry)
        self._on_refused("full", entry.flow)
        entry.turn.set_exception(self._full())

    def _release(self, key: str) -> None:
        self.in_flight -= 1
        self._admitted.end_relay(key)
        if self._queue:
            self.dispatch()

    def _full(self) -> TooManyRequests:
        return TooManyRequests(
            f"{self.in_flight} requests are running and {self.queued} are waiting; retry later",
            retry_after=self._retry_after(),
        )

    def _retry_after(self) -> float:
        # The number in flight replaces that of the permits: the capacity of the engines may be smaller.
        return retry_after(self.queued, max(1, self.in_flight), self._service_seconds)


class _AdmissionScope:
    __slots__ = ("_admission", "_key")

    def __init__(self, admission: Admission, key: str) -> None:
        self._admission, self._key = admission, key

    def __enter__(self) -> None:
        self._admission.enter(self._key)

    def __exit__(self, *_: object) -> None:
        self._admission.leave(self._key)
