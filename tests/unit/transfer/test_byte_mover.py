"""Bundles moved by the C++ library: the bytes and checksums of Python, and fetches that end as safely."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from mamba_kernels.cpu.library import library
from mamba_server.engine.transfers.byte_mover import KernelByteMover
from mamba_transfer import BlockChecksums, TransferClient, Verdict, Wanted
from mamba_transfer.socket_transport import SocketTransport
from mamba_transfer.transport import ByteMover, CheckedBytes
from transfer_models import layout_of, mamba_model
from transfer_peers import EXPORT, LAYOUT, WANTED, HeldExports, bundle, serving

FAR = 1e9
EDGES = (241, 255, 256, 257, 1024, 1025, 1088, 1089, 4096)
"""Sizes at which a checksum begins another stripe or round."""


def kernel_mover(*, wide: bool = True) -> KernelByteMover:
    """Return a mover, or skip the test where there is no library."""
    if (machine_code := library()) is None:
        pytest.skip("this machine has no C++ kernels")
    return KernelByteMover(machine_code, wide=wide)


def pieces_of(memory: bytearray, rng: random.Random) -> list[memoryview]:
    """Cut `memory` into pieces, of which many are shorter than a stripe."""
    pieces, start = [], 0
    while start < len(memory):
        stop = start + rng.choice((1, 7, 63, 64, 100, 5000, rng.randrange(1, len(memory))))
        pieces.append(memoryview(memory)[start:stop])
        start = stop
    return pieces


def digests_of(memory: bytes | bytearray, sizes: Sequence[int]) -> bytes:
    checksums = BlockChecksums(sizes)
    checksums.update(memoryview(memory))
    return checksums.digests


@pytest.mark.parametrize("wide", [False, True])
def test_bytes_and_checksums_are_those_of_python_however_memory_is_cut(wide: bool) -> None:
    mover, rng = kernel_mover(wide=wide), random.Random(1)
    for _ in range(20):
        sizes = [*rng.sample(EDGES, 4), rng.randrange(241, 60_000)]
        data = bytearray(rng.randbytes(sum(sizes)))
        landing = bytearray(len(data))
        outgoing = mover.begin(pieces_of(data, rng), sizes, sends=True)
        incoming = mover.begin(pieces_of(landing, rng), sizes, sends=False)
        assert outgoing is not None
        assert incoming is not None
        near, far = socket.socketpair()
        with near, far, closing(outgoing), closing(incoming):
            sender = threading.Thread(target=move_all, args=(outgoing, near))
            sender.start()
            move_all(incoming, far)
            sender.join()
            assert landing == data
            assert outgoing.digests == incoming.digests == digests_of(data, sizes)


def move_all(moving: CheckedBytes, end: socket.socket) -> None:
    while moving.left:
        moving.move(end.fileno())


def test_pieces_of_another_size_than_the_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="pieces of 299 bytes are no blocks of 300"):
        kernel_mover().begin([memoryview(bytearray(299))], [300], sends=False)


def test_a_reader_learns_that_the_source_has_gone() -> None:
    incoming = kernel_mover().begin([memoryview(bytearray(300))], [300], sends=False)
    assert incoming is not None
    near, far = socket.socketpair()
    with closing(incoming), far:
        near.sendall(bytes(100))
        near.close()
        assert incoming.move(far.fileno()) == 100
        assert incoming.move(far.fileno()) == 0
        assert incoming.left == 200


def test_bytes_short_of_a_window_are_counted_while_the_source_pauses() -> None:
    incoming = kernel_mover().begin([memoryview(bytearray(300))], [300], sends=False)
    assert incoming is not None
    near, far = socket.socketpair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 10_000))
    with closing(incoming), near, far:
        near.sendall(bytes(100))
        assert incoming.move(far.fileno()) == 100
        with pytest.raises(BlockingIOError):
            incoming.move(far.fileno())
        near.sendall(bytes(200))
        assert incoming.move(far.fileno()) == 200
    assert incoming.digests == digests_of(bytes(300), [300])


@contextmanager
def engines(
    source_mover: ByteMover | None, reader_mover: ByteMover | None, **reader: Any
) -> Iterator[tuple[Callable[..., Any], list[memoryview], list[memoryview], HeldExports]]:
    """Yield a fetch of one bundle, its landing memory, the memory of the source, and the source's exports."""
    _, buffers = bundle(seed=1)
    _, landing = bundle()
    source = HeldExports(buffers, 600, lambda: 0.0)
    client = TransferClient(LAYOUT, transport=SocketTransport(reader_mover), **reader)
    with serving(source, transports=(SocketTransport(source_mover),)) as (_, peer):

        def fetch(**settings: Any) -> Any:
            return client.fetch(peer, WANTED, landing, **settings)

        yield fetch, landing, buffers, source


@pytest.mark.parametrize("at_source", [False, True])
def test_engines_with_the_library_and_without_it_read_each_other(at_source: bool) -> None:
    mover = kernel_mover()
    with engines(*((mover, None) if at_source else (None, mover))) as (fetch, landing, buffers, source):
        assert fetch(deadline=FAR).verdict is Verdict.VALID
    assert landing == buffers
    assert source.ends == [True]


class Damaging:
    """Mover of a source whose bytes are damaged behind its checksums."""

    def __init__(self, damaged: float) -> None:
        """Flip one bit at the place `damaged` of the bundle, from 0 to 1."""
        self._damaged = damaged

    def begin(self, pieces: Sequence[memoryview], sizes: Sequence[int], *, sends: bool) -> Any:
        sound = bytearray().join(pieces)
        damaged = bytearray(sound)
        damaged[int(self._damaged * (len(sound) - 1))] ^= 64
        moving = kernel_mover().begin([memoryview(damaged)], sizes, sends=sends)
        return DamagedBytes(moving, digests_of(sound, sizes))


class DamagedBytes:
    """Bytes on their way whose sender believes in other checksums."""

    def __init__(self, moving: Any, digests: bytes) -> None:
        self._moving, self.digests = moving, digests
        self.move, self.close = moving.move, moving.close

    @property
    def left(self) -> int:
        return int(self._moving.left)


@pytest.mark.parametrize("damaged", [0.0, 0.6, 1.0])
def test_a_flipped_bit_is_noticed(damaged: float) -> None:
    with engines(Damaging(damaged), kernel_mover()) as (fetch, _, _, source):
        assert fetch(deadline=FAR).verdict is Verdict.CORRUPT
    assert source.ends == [False]


class Stalled:
    """Mover of a source that sends nothing, and ends after some hundred looks."""

    left = 1

    def __init__(self, stalls: Callable[[], None]) -> None:
        """Call `stalls` whenever nothing is sent."""
        self._stalls, self._looks = stalls, 0

    def begin(self, pieces: Sequence[memoryview], sizes: Sequence[int], *, sends: bool) -> Any:
        return self

    def move(self, number: int) -> int:
        self._stalls()
        self._looks += 1
        if self._looks > 300:
            raise ConnectionResetError
        threading.Event().wait(0.02)
        raise BlockingIOError

    def close(self) -> None:
        """Have nothing to free."""


def test_a_cancelled_fetch_ends_while_the_source_sends_nothing() -> None:
    cancelled = threading.Event()
    with engines(Stalled(cancelled.set), kernel_mover()) as (fetch, _, _, _):
        outcome = fetch(deadline=FAR, cancelled=cancelled.is_set)
    assert (outcome.verdict, outcome.writer) == (Verdict.CANCELLED, None)


def test_a_fetch_ends_at_its_deadline_while_the_source_sends_nothing() -> None:
    now = [0.0]
    stalled = Stalled(lambda: now.__setitem__(0, 50.0))
    with engines(stalled, kernel_mover(), clock=lambda: now[0]) as (fetch, _, _, _):
        outcome = fetch(deadline=40.0)
    assert (outcome.verdict, outcome.detail) == (
        Verdict.LOST,
        "the peer did not answer before the deadline",
    )


def test_blocks_of_few_bytes_are_moved_by_python() -> None:
    layout = layout_of(mamba_model(1, 1))
    memory = [memoryview(bytearray(range(256)) * 64)[: layout.state_bytes]]
    landing = [memoryview(bytearray(layout.state_bytes))]
    transport = SocketTransport(kernel_mover())
    source = HeldExports(memory, 30, lambda: 0.0)
    with serving(source, layout=layout, transports=(transport,)) as (_, peer):
        client = TransferClient(layout, transport=transport)
        outcome = client.fetch(peer, Wanted(depth=0, export=EXPORT), landing, deadline=FAR)
    assert outcome.verdict is Verdict.VALID
    assert landing == memory
