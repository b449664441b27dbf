"""Whole engines that are killed or stopped amid a hand-over: both of their processes at once, as a pod ends.

Leases are so long that a wait for something that must come (`eventually.PATIENCE`) is two of them. So whoever
holds a slot or a page for longer than two leases fails here, and a slow machine does not.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from eventually import PATIENCE
from hand_over_wire import EXPORT_POINTS, TRANSFER_POINTS
from matrix_size import LARGE
from servers import Server
from struck_fleet import Fleet, assert_right, signal_whole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LARGE, reason="a fleet that waits for leases: MAMBASERVE_GATES=large"),
]
LEASE = PATIENCE / 2
POINTS = (*EXPORT_POINTS, *TRANSFER_POINTS)
CASES = [
    (deed, victim, point)
    for deed in ("kill", "stop")
    for victim in ("decode", "prefill")
    # Each case that stops a reader waits for a lease.
    for point in (POINTS if deed == "kill" else POINTS[2::4])
    # Before the prompt is computed no decode engine has the request.
    if not (victim == "decode" and point in EXPORT_POINTS)
]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, lease=LEASE)


@pytest.mark.parametrize(("deed", "victim", "point"), CASES, ids=lambda word: word.replace(" ", "_"))
def test_pools_are_empty_two_leases_after_a_whole_engine_was_struck(
    fleet: Fleet, deed: str, victim: str, point: str
) -> None:
    fleet.wait_until_ready()
    request = fleet.request()
    struck: list[Server] = []

    def act(port: int) -> None:
        struck.append(fleet.prefill if victim == "prefill" else fleet.readers[port])
        signal_whole(struck[0], signal.SIGKILL if deed == "kill" else signal.SIGSTOP)

    fleet.trigger.arm(point, act)
    client = threading.Thread(target=request.run)
    client.start()
    assert fleet.trigger.fired.wait(PATIENCE), f"the hand-over did not come to {point!r}"
    for engine in fleet.engines:
        if engine not in struck:
            engine.wait_until_empty()
    client.join(PATIENCE)
    assert not client.is_alive()
    if deed == "kill":
        fleet.replace(struck[0])
    else:
        signal_whole(struck[0], signal.SIGCONT)
    for engine in fleet.engines:
        engine.wait_until_empty()
    assert_right(fleet, request)
