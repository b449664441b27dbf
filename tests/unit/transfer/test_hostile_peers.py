"""Bytes that no peer sends: the connection closes, nothing grows, and everybody else is served on."""

import random
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from eventually import wait_until
from mamba_transfer import Address, Peer, TransferClient, TransferServer, UnusableAddress, Verdict, Wanted
from mamba_transfer.frames import MAGIC, Connection, Limit
from mamba_transfer.messages import VERSION, Done, Expired, Hello, Renew, Welcome, pack
from mamba_transfer.session import ANSWER_SECONDS, IDLE_SECONDS
from transfer_peers import INCARNATION, LAYOUT, WANTED, HeldExports, bundle, serving

FAR = 1e9


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def frame(body: bytes, *, magic: bytes = MAGIC, version: int = VERSION, length: int | None = None) -> bytes:
    return struct.pack(">4sHI", magic, version, len(body) if length is None else length) + body


HELLO = frame(pack(Hello(INCARNATION, LAYOUT)))
SPEECHES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "another magic": frame(b"", magic=b"http"),
    "four gigabytes": frame(b"", length=(1 << 32) - 1),
    "one byte above the limit": frame(b"", length=(1 << 16) + 1),
    "no message": frame(b"\xc1\xff\x00"),
    "deeply nested": frame(b"\x91" * 60_000),
    "another message first": frame(pack(Done())),
    "another first message of the source": frame(pack(Expired())),
    "an unknown tag": frame(msgspec.msgpack.encode(["shutdown"])),
    "a layout of a million ranks": frame(
        pack(Hello(INCARNATION, msgspec.structs.replace(LAYOUT, ranks=1_000_000)))
    ),
    "two hellos": HELLO + HELLO,
    "tokens that do not fit their depth": HELLO + frame(pack(Wanted(depth=8, token_ids=b"1234"))),
    "a base beyond the depth": HELLO + frame(pack(Wanted(depth=1, base=2, export="a"))),
    "a thousand renewals": HELLO + frame(pack(Renew(("a",) * 1000))),
    "random bytes": random.Random(3).randbytes(4096),
}


@contextmanager
def raw(peer: Peer) -> Iterator[socket.socket]:
    with socket.create_connection(peer.address, timeout=60) as end:
        yield end


def heard(end: socket.socket) -> bytes:
    """Return all that the other side says until it closes."""
    parts = []
    try:
        while part := end.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("speech", SPEECHES.values(), ids=SPEECHES)
def test_what_no_reader_says_closes_the_connection_and_nothing_else(speech: bytes) -> None:
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 30, Clock())
    with serving(source, most_tokens=1 << 10) as (server, peer):
        with raw(peer) as end:
            end.sendall(speech)
            answer = heard(end)
        assert len(answer) < 4096
        wait_until(lambda: server.connections == 0)
        assert source.opened == 0
        _, landing = bundle()
        assert TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR).verdict is Verdict.VALID


def test_a_reader_of_another_version_is_refused_with_that_word() -> None:
    with serving(HeldExports([], 30, Clock())) as (_, peer), raw(peer) as end:
        end.sendall(frame(pack(Hello(INCARNATION, LAYOUT)), version=VERSION + 1))
        assert b"version" in heard(end)


def test_a_length_alone_costs_no_memory() -> None:
    with serving(HeldExports([], 30, Clock())) as (_, peer):
        ends = [socket.create_connection(peer.address) for _ in range(8)]
        tracemalloc.start()
        try:
            for end in ends:
                end.sendall(HELLO)
                end.recv(1 << 12)
                end.sendall(frame(b"", length=16 << 20) + b"x" * 70_000)
            wait_until(lambda: tracemalloc.get_traced_memory()[0] > 8 * 60_000)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
            for end in ends:
                end.close()


@pytest.mark.parametrize(
    ("speech", "seconds"), [(b"", ANSWER_SECONDS), (HELLO[:20], ANSWER_SECONDS), (HELLO, IDLE_SECONDS)]
)
def test_a_reader_that_says_no_more_loses_its_connection(speech: bytes, seconds: float) -> None:
    clock = Clock()
    with serving(HeldExports([], 30, clock), clock=clock) as (server, peer), raw(peer) as end:
        end.sendall(speech)
        wait_until(lambda: server.connections == 1)
        if speech == HELLO:
            assert end.recv(1 << 12)

        def gone() -> bool:
            clock.seconds += seconds  # the reader's thread may not have begun to wait before
            return server.connections == 0

        wait_until(gone)


def test_readers_above_the_limit_are_turned_away_and_the_others_served() -> None:
    _, buffers = bundle(seed=1)
    with serving(HeldExports(buffers, 30, Clock()), most_connections=2) as (server, peer):
        _, landing = bundle()
        client = TransferClient(LAYOUT)
        with raw(peer), raw(peer):
            wait_until(lambda: server.connections == 2)
            assert client.fetch(peer, WANTED, landing, deadline=FAR).verdict is Verdict.LOST
        wait_until(lambda: server.connections == 0)
        assert client.fetch(peer, WANTED, landing, deadline=FAR).verdict is Verdict.VALID


Speech = Callable[[Connection, Limit], None]


def says(*frames: bytes) -> Speech:
    def speech(connection: Connection, limit: Limit) -> None:
        for each in frames:
            connection.receive_frame(1 << 20, limit)
            connection.send([memoryview(each)], limit)

    return speech


WELCOME = frame(pack(Welcome(LAYOUT)))


@pytest.mark.parametrize(
    ("speech", "verdict"),
    [
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Verdict.LOST),
        (says(frame(b"", length=(1 << 32) - 1)), Verdict.LOST),
        (says(frame(b"\xc1")), Verdict.LOST),
        (says(frame(pack(Expired()), version=9)), Verdict.REFUSED),
        (says(frame(pack(Welcome(msgspec.structs.replace(LAYOUT, fingerprint="others"))))), Verdict.REFUSED),
        (says(WELCOME, WELCOME), Verdict.LOST),
        (
            says(WELCOME, frame(msgspec.msgpack.encode(["offer", WANTED.depth, 0, 7, 30.0, b""]))),
            Verdict.LOST,
        ),
    ],
)
def test_a_source_that_says_what_no_source_says_ends_the_fetch(
    speech: Speech, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(
        TransferServer, "_converse", lambda self, connection: speech(connection, Limit(clock, FAR))
    )
    arena, landing = bundle()
    with serving(HeldExports([], 30, clock)) as (_, peer):
        assert TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR).verdict is verdict
    assert not any(arena)


@pytest.mark.parametrize(
    "text", ["", "9000", "engine:9000", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "::1:9000"]
)
def test_an_address_that_is_no_ip_and_port_is_refused(text: str) -> None:
    with pytest.raises(UnusableAddress):
        Address.parse(text)


@pytest.mark.parametrize("text", ["10.0.0.1:9000", "[fd00::7]:9000"])
def test_an_address_reads_back_as_it_was_written(text: str) -> None:
    assert str(Address.parse(text)) == text
