"""Peers that are killed or stopped, at every message of the protocol, as real processes over real sockets.

Whatever happens to one side, the other one ends with a definite outcome before its deadline, and no byte
lands once a fetch has returned.
"""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

import pytest

from eventually import wait_until
from mamba_transfer import TransferClient, Verdict
from matrix_size import LARGE
from transfer_peers import (
    LAYOUT,
    WANTED,
    HeldExports,
    bundle,
    fault,
    forked,
    peer_at,
    serving,
    source_process,
    strike,
)

SOON = 0.25
"""Seconds of a deadline or lease that is meant to pass."""
SOURCE_POINTS = (
    "after hello",
    "before ok",
    "after fetch",
    "before offer",
    "amid bytes",
    "before checksums",
    "after done",
)
READER_POINTS = (
    "before hello",
    "after ok",
    "before fetch",
    "after offer",
    "amid bytes",
    "after checksums",
    "before done",
)


@pytest.mark.parametrize("point", SOURCE_POINTS)
def test_a_fetch_from_a_source_that_is_killed_is_lost_at_once(point: str) -> None:
    _, landing = bundle()
    with forked(source_process(point, signal.SIGKILL)) as (process, pipe):
        peer = peer_at(pipe.recv())
        outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=time.monotonic() + 600)
        assert (outcome.verdict, outcome.writer) == (Verdict.LOST, None)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL


def clock_of_the_stop(pid: int) -> Callable[[], float]:
    """Return a clock that passes SOON once the process has stopped, however long that takes."""
    stopped = False

    def clock() -> float:
        nonlocal stopped
        stopped = stopped or os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is not None
        return 2 * SOON if stopped else 0.0

    return clock


@pytest.mark.parametrize("point", SOURCE_POINTS if LARGE else SOURCE_POINTS[::2])
def test_a_fetch_from_a_stopped_source_ends_at_its_deadline_and_nothing_lands_later(point: str) -> None:
    arena, landing = bundle()
    with forked(source_process(point, signal.SIGSTOP)) as (process, pipe):
        peer = peer_at(pipe.recv())
        assert process.pid is not None
        client = TransferClient(LAYOUT, clock=clock_of_the_stop(process.pid))
        outcome = client.fetch(peer, WANTED, landing, deadline=SOON)
        assert (outcome.verdict, outcome.writer) == (Verdict.LOST, None)
        before = bytes(arena)
        os.kill(process.pid, signal.SIGCONT)
        # The source goes on: it answers another reader, after it has dealt with the first one.
        _, other = bundle()
        patient = TransferClient(LAYOUT, patience=600)
        again = patient.fetch(peer, WANTED, other, deadline=time.monotonic() + 600)
        assert again.verdict is Verdict.VALID
        assert arena == before


def test_a_source_that_is_silent_for_longer_than_the_patience_is_lost_before_the_deadline() -> None:
    _, landing = bundle()
    with forked(source_process("amid bytes", signal.SIGSTOP)) as (_, pipe):
        peer = peer_at(pipe.recv())
        client = TransferClient(LAYOUT, patience=SOON)
        outcome = client.fetch(peer, WANTED, landing, deadline=time.monotonic() + 3600)
        assert outcome.verdict is Verdict.LOST


def reader(point: str, number: signal.Signals, pipe: Pipe) -> None:
    """Fetch in a process of its own, and strike it at `point`."""
    _, landing = bundle()
    peer = peer_at(pipe.recv())
    with fault(point, strike(number)):
        outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=time.monotonic() + 600)
    pipe.send(outcome.verdict.value)
    pipe.poll(60)


@pytest.mark.parametrize("point", READER_POINTS)
def test_the_export_of_a_reader_that_is_killed_ends_at_once(point: str) -> None:
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 600.0, time.monotonic)
    with (
        forked(lambda pipe: reader(point, signal.SIGKILL, pipe)) as (process, pipe),
        serving(source) as (server, peer),
    ):
        pipe.send(str(peer.address))
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        wait_until(lambda: server.connections == 0)
        assert source.ends == [False] * source.opened


@pytest.mark.parametrize("point", READER_POINTS if LARGE else READER_POINTS[::2])
def test_the_export_of_a_stopped_reader_ends_with_its_lease(point: str) -> None:
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, SOON, time.monotonic)
    with (
        forked(lambda pipe: reader(point, signal.SIGSTOP, pipe)) as (process, pipe),
        serving(source) as (_, peer),
    ):
        pipe.send(str(peer.address))
        assert process.pid is not None
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        wait_until(lambda: source.ends == [False] * source.opened)
        opened = source.opened
        os.kill(process.pid, signal.SIGCONT)
        # The reader that wakes late finds an ended export, or begins only now. How many bytes the kernel has
        # for the reader decides whether the source still waits for its next message.
        assert pipe.recv() in (("lost", "expired") if opened else ("valid",))
        wait_until(lambda: len(source.ends) == source.opened)
        assert source.ends == ([False] if opened else [True])
