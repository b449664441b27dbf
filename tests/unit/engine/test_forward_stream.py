"""Every forward stream runs steps in order, one at a time, and hands errors to whoever waits."""

import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from eventually import PATIENCE, wait_until
from mamba_server.engine.stepping.forward_stream import ForwardStream, InlineStream, ThreadStream
from simulated_stream import SimulatedStream

STREAMS = [ThreadStream, InlineStream, lambda: SimulatedStream(lambda _: 0)]


@pytest.mark.parametrize("make", STREAMS)
def test_steps_run_in_the_order_of_their_launch(make: Callable[[], ForwardStream]) -> None:
    stream, order = make(), []
    tickets = [stream.launch(lambda at=at: order.append(at) or at) for at in range(5)]
    assert [stream.wait(ticket) for ticket in tickets] == list(range(5))
    assert order == list(range(5))
    stream.close()


@pytest.mark.parametrize("make", STREAMS)
def test_an_error_reaches_who_waits_and_the_next_step_still_runs(make: Callable[[], ForwardStream]) -> None:
    stream = make()
    bad, good = stream.launch(lambda: 1 // 0), stream.launch(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        stream.wait(bad)
    assert stream.wait(good) == 7
    stream.close()


@pytest.mark.parametrize("make", STREAMS)
def test_what_was_launched_runs_before_the_stream_closes(make: Callable[[], ForwardStream]) -> None:
    stream, done = make(), []
    stream.launch(lambda: done.append(1) or 1)
    stream.close()
    assert done == [1]


def test_the_thread_works_while_the_caller_goes_on() -> None:
    stream, gate = ThreadStream(), threading.Event()
    ticket = stream.launch(lambda: gate.wait(20))
    assert not ticket.done.is_set()
    gate.set()
    assert stream.wait(ticket) is True
    stream.close()


def test_the_simulated_stream_completes_as_many_as_it_is_told() -> None:
    stream = SimulatedStream(lambda _: 0)
    tickets = [stream.launch(lambda at=at: at) for at in range(4)]
    stream.complete(2)
    assert [ticket.done.is_set() for ticket in tickets] == [True, True, False, False]
    stream.wait(tickets[3])
    assert all(ticket.done.is_set() for ticket in tickets)


def test_waiting_costs_no_more_than_the_step() -> None:
    stream, began = ThreadStream(), time.monotonic()
    stream.wait(stream.launch(lambda: 1))
    assert time.monotonic() - began < 10
    stream.close()


def test_a_stream_that_waits_keeps_nothing_of_a_step_alive_and_ends_with_its_owner() -> None:
    class Arena:
        pass

    def work(_arena: Arena) -> int:
        return 1

    arena, stream = Arena(), ThreadStream()
    seen, thread = weakref.ref(arena), stream._thread
    assert stream.wait(stream.launch(partial(work, arena))) == 1
    del arena
    wait_until(lambda: seen() is None)
    del stream
    thread.join(PATIENCE)
    assert not thread.is_alive()
