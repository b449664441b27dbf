"""A hand-over whose peer falls silent holds no memory for longer than two leases, by the clock of the leases.

The clock moves only when the test moves it, so that the outcome depends on no machine. The message at which
the peer falls silent is held in a relay between the two engines.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines import Answer, greedy, make_engine, run
from hand_over_requests import handed
from hand_over_wire import TRANSFER_POINTS, TransferRelay, Trigger
from joined_engines import Joined, joined, with_source
from mamba_server.wire import AddRequest

pytestmark = pytest.mark.slow
LEASE = 1000.0
SETTINGS: dict[str, Any] = {"batch_invariant": True, "page_size": 16}


class LeaseClock:
    """A clock that a test moves; looking at it takes a microsecond, so that no step takes no time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1e-6
        return self.seconds


class SilentPeers:
    """A prefill and a decode engine whose messages a relay holds from one point on."""

    def __init__(self, model: Path) -> None:
        self.clock = LeaseClock()
        self.prefill, self.decode = (self._engine(model) for _ in range(2))
        self.trigger = Trigger(lambda port: None)
        port = int(self.prefill.endpoint.address.rpartition(":")[2])
        self.relay = TransferRelay(port, self.trigger)

    def _engine(self, model: Path) -> Joined:
        engine = make_engine(model, **SETTINGS)
        engine.core.clock = self.clock
        return Joined(engine, transfer_lease=LEASE)

    def request(self, number: int) -> AddRequest:
        """Return a request that no engine has cached."""
        return greedy(f"r{number}", [number, *range(100)], 4)

    def behind_the_relay(self, request: AddRequest) -> AddRequest:
        """Return the request with the relay as the place of its state."""
        asked = with_source(request, self.prefill)
        assert asked.fetch is not None
        fetch = msgspec.structs.replace(asked.fetch, address=f"127.0.0.1:{self.relay.port}")
        return msgspec.structs.replace(asked, fetch=fetch)

    def held(self) -> int:
        """Return the slots and pages that both engines hold for transfers."""
        capacities = [engine.core.cache.capacity for engine in (self.prefill, self.decode)]
        return sum(each.receiving + each.exported + each.quarantined for each in capacities)

    def until_empty(self) -> None:
        """Step both engines, at one time of the clock, until they hold nothing."""
        self.decode.until(lambda: self.decode.core.idle and not self.held(), self.prefill)


@pytest.fixture(scope="module")
def peers(random_model: Path) -> Iterator[SilentPeers]:
    peers = SilentPeers(random_model)
    with joined(peers.prefill, peers.decode):
        yield peers
        peers.relay.close()


@pytest.fixture(scope="module")
def unified(random_model: Path) -> Iterator[Any]:
    return make_engine(random_model, **SETTINGS)


@pytest.mark.parametrize("number", range(len(TRANSFER_POINTS)), ids=TRANSFER_POINTS)
def test_a_peer_that_falls_silent_holds_memory_for_two_leases_at_most(
    peers: SilentPeers, unified: Any, number: int
) -> None:
    request, silent, go = peers.request(number), threading.Event(), threading.Event()

    def fall_silent(port: int) -> None:
        silent.set()
        go.wait()

    peers.trigger.arm(TRANSFER_POINTS[number], fall_silent)
    try:
        peers.prefill.run(handed(request))
        assert peers.held()
        began = peers.clock.seconds
        peers.decode.add(peers.behind_the_relay(request))
        peers.decode.until(silent.is_set, peers.prefill)
        assert peers.clock.seconds - began < 1.0
        # Nobody has heard of the other side for a lease, and then for nearly a second one.
        peers.clock.seconds = began + 1.01 * LEASE
        peers.decode.until(lambda: finished(peers.decode, request), peers.prefill)
        peers.clock.seconds = began + 1.99 * LEASE
        peers.until_empty()
        assert peers.clock.seconds - began < 2 * LEASE
        # What lands afterwards lands nowhere.
    finally:
        go.set()
    peers.until_empty()
    [expected] = run(unified, [request]).values()
    answer = peers.decode.answers[request.request_id, 0]
    assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)


def finished(engine: Joined, request: AddRequest) -> bool:
    """Return whether the engine has answered the request."""
    return bool(engine.answers.get((request.request_id, 0), Answer()).finish_reason)
