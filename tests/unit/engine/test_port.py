"""The engine's two sockets: order, waiting, last words, and what does not belong on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from eventually import PATIENCE
from mamba_server.engine.engine_loop import EngineSockets
from mamba_server.wire import (
    AbortRequest,
    AdminCall,
    Fatal,
    FromEngine,
    Progress,
    Shutdown,
    ToEngine,
    decoder,
    encoder,
)


class Parent:
    """The other end, as the API process binds it."""

    def __init__(self, folder: Path) -> None:
        self.to_engine, self.from_engine = f"ipc://{folder}/to", f"ipc://{folder}/from"
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = self._context.socket(zmq.PULL)
        for socket, address in ((self._push, self.to_engine), (self._pull, self.from_engine)):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(address)

    def send(self, message: ToEngine) -> None:
        self.send_raw(encoder().encode(message))

    def send_raw(self, frame: bytes) -> None:
        self._push.send(frame)

    def receive(self) -> FromEngine:
        assert self._pull.poll(5000), "nothing came"
        return decoder(FromEngine).decode(self._pull.recv())

    def close(self) -> None:
        self._push.close()
        self._pull.close()
        self._context.term()


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    made = Parent(tmp_path)
    yield made
    made.close()


@pytest.fixture
def port(parent: Parent) -> Iterator[EngineSockets]:
    made = EngineSockets(parent.to_engine, parent.from_engine)
    yield made
    made.close()


def test_a_burst_is_taken_in_a_few_at_a_time_and_in_order(parent: Parent, port: EngineSockets) -> None:
    sent: list[ToEngine] = [AbortRequest(f"r{index}") for index in range(1000)]
    for message in sent:
        parent.send(message)
    taken, most = [], 0
    while len(taken) < len(sent):
        some = port.receive(1.0)
        most = max(most, len(some))
        taken.extend(some)
    assert taken == sent
    assert most <= 64


def receive(port: EngineSockets, count: int) -> list[ToEngine]:
    out: list[ToEngine] = []
    deadline = time.monotonic() + PATIENCE
    while len(out) < count and time.monotonic() < deadline:
        out.extend(port.receive(1.0))
    return out


def test_messages_arrive_whole_and_in_order(parent: Parent, port: EngineSockets) -> None:
    sent = [AdminCall(number, "strategy", {"strategy": "NoBuffer"}) for number in range(500)]
    for message in sent:
        parent.send(message)
    assert receive(port, 500) == sent


def test_what_the_engine_says_arrives_in_order(parent: Parent, port: EngineSockets) -> None:
    for done in range(500):
        port.send(Progress("weights", done, 500))
    assert [parent.receive().done for _ in range(500)] == list(range(500))  # type: ignore[union-attr]


def test_looking_without_waiting_returns_at_once(port: EngineSockets) -> None:
    began = time.monotonic()
    for _ in range(100):
        assert port.receive(0.0) == []
    assert time.monotonic() - began < PATIENCE


def test_waiting_ends_with_the_time_or_with_the_first_message(parent: Parent, port: EngineSockets) -> None:
    began = time.monotonic()
    assert port.receive(0.05) == []
    assert 0.04 < time.monotonic() - began < PATIENCE
    threading.Timer(0.05, lambda: parent.send(Shutdown())).start()
    began = time.monotonic()
    assert port.receive(2 * PATIENCE) == [Shutdown()]
    assert time.monotonic() - began < PATIENCE


def test_last_words_are_delivered_although_the_socket_is_closed_behind_them(parent: Parent) -> None:
    """More than fits the buffers of the operating system, so that it matters who waits for whom."""
    port = EngineSockets(parent.to_engine, parent.from_engine)
    for number in range(40):
        port.send(Fatal("needs more memory" * 30_000, number))
    port.close()
    last = [parent.receive() for _ in range(40)][-1]
    assert isinstance(last, Fatal)
    assert (len(last.message), last.exit_code) == (510_000, 39)


@pytest.mark.parametrize(
    "frame",
    [
        b"\xc1 not msgpack",
        msgspec.msgpack.encode({"type": "dance"}),
        msgspec.msgpack.encode({"type": "abort"}),
        msgspec.msgpack.encode({"type": "abort", "request_id": 7}),
        msgspec.msgpack.encode(Progress("weights", 1, 2)),
    ],
)
def test_a_frame_of_another_protocol_is_an_error_and_no_message(
    parent: Parent, port: EngineSockets, frame: bytes
) -> None:
    parent.send_raw(frame)
    with pytest.raises(msgspec.DecodeError):
        receive(port, 1)
    parent.send(AbortRequest("r"))
    assert receive(port, 1) == [AbortRequest("r")]


def test_a_thread_wakes_an_engine_that_waits_for_messages(parent: Parent, port: EngineSockets) -> None:
    waker = threading.Timer(0.01, port.wake)
    waker.start()
    assert port.receive(3600) == [], "nothing but the wake ends this wait"
    waker.join()
    for _ in range(70_000):  # more than the pipe holds: none of them blocks
        port.wake()
    parent.send(Shutdown())
    while not (messages := port.receive(PATIENCE)):
        pass
    assert messages == [Shutdown()]
