"""Hand-overs that something happens to at each of their messages, in real engines behind a real gateway.

An engine process is killed, is stopped for good, or is stopped for longer than a lease; the client leaves; a
message is late by more than a lease. Every request ends with the right answer, or with an error within its
stream, and what either side held for it is free afterwards. That two leases are enough for this is shown by
their clock, in `tests/gates/test_leases_by_their_clock.py`, and for whole engines in
`test_struck_engines.py`: here leases are short, and the machine may be slow.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hand_over_wire import EXPORT_POINTS, TRANSFER_POINTS
from matrix_size import LARGE
from servers import Server
from struck_fleet import Fleet, assert_right

LEASE = 3.0
PAUSE = 1.5 * LEASE
POINTS = (*EXPORT_POINTS, *TRANSFER_POINTS)
QUICK = {
    ("kill", "prefill", "bytes 2"), ("abort", "", "bytes 1"),
}  # fmt: skip
"""Cases that are no slow tests."""
REPRESENTATIVES = QUICK | {
    ("kill", "decode", "offer"), ("pause", "prefill", "export answered"), ("pause", "decode", "checksums"),
    ("stop", "prefill", "fetch"), ("stop", "decode", "bytes 3"), ("late", "", "valid"),
}  # fmt: skip
"""Each deed at each victim once, at points from the beginning to the end of a hand-over."""


def cases() -> Iterator[object]:
    """Yield every deed at every point; an engine that is stopped for good at every fourth."""
    every = [
        (deed, victim, point)
        for deed, victims in {
            "kill": ("prefill", "decode"), "pause": ("prefill", "decode"), "stop": ("prefill", "decode"),
            "abort": ("",), "late": ("",),
        }.items()
        for victim in victims
        for point in (POINTS[::4] if deed == "stop" else POINTS)
        # Before the prompt is computed no decode engine has the request.
        if not (victim == "decode" and point in EXPORT_POINTS)
    ]  # fmt: skip
    assert set(every) >= REPRESENTATIVES
    for case in every:
        if not (LARGE or case in REPRESENTATIVES):
            continue  # `make gates` has all of them: much of their time is waiting for leases
        marks = () if case in QUICK else (pytest.mark.slow,)
        yield pytest.param(*case, id="-".join(filter(None, case)).replace(" ", "_"), marks=marks)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, lease=LEASE)


def strike(deed: str, pid: int) -> None:
    os.kill(pid, signal.SIGKILL if deed == "kill" else signal.SIGSTOP)


@pytest.mark.parametrize(("deed", "victim", "point"), list(cases()))
def test_a_hand_over_that_is_struck_ends_right_and_leaves_nothing(
    fleet: Fleet, deed: str, victim: str, point: str
) -> None:
    fleet.wait_until_ready()
    request = fleet.request()
    struck: list[Server] = []
    pids: list[int] = []

    def act(port: int) -> None:
        if deed == "abort":
            request.leave()
            time.sleep(LEASE / 8)  # so that the departure is noticed before the message goes on
        elif deed == "late":
            time.sleep(1.2 * LEASE)
        else:
            engine = fleet.prefill if victim == "prefill" else fleet.readers[port]
            struck.append(engine)
            pids.append(engine.engine_pid())
            strike(deed, pids[0])

    fleet.trigger.arm(point, act)
    client = threading.Thread(target=request.run)
    client.start()
    assert fleet.trigger.fired.wait(60), f"the hand-over did not come to {point!r}"
    since = time.monotonic()
    others = [engine for engine in fleet.engines if engine not in struck]
    if victim == "decode" and deed in ("pause", "stop"):
        fleet.prefill.wait_until_empty()
    if deed == "pause":
        time.sleep(max(0.0, since + PAUSE - time.monotonic()))
        os.kill(pids[0], signal.SIGCONT)
    client.join(60)
    assert not client.is_alive()
    for engine in others if deed in ("kill", "stop") else fleet.engines:
        engine.wait_until_empty()
    for engine in struck:
        engine.wait_until_empty()
        assert (engine.engine_pid() == pids[0]) == (deed == "pause")
    assert_right(fleet, request)
