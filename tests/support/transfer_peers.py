"""Both ends of a transfer for tests: exports in plain memory, and faults at a named point of the protocol.

A point is named by what just happened on a connection of this process: `before offer` (the frame is not sent
yet), `after offer` (the frame was read), `amid bytes` (two chunks of the bundle went over).
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import ForkProcess
from typing import Any

import msgspec

from mamba_planner.model_config import AttentionConfig, MambaConfig, ModelConfig
from mamba_transfer import (
    Address,
    HotPrefix,
    Lease,
    OpenExport,
    Peer,
    StateLayout,
    TransferServer,
    Wanted,
    arena_buffers,
)
from mamba_transfer.frames import Connection
from mamba_transfer.leases import Clock
from transfer_models import layout_of

PAGES = 12
CHUNK = 1 << 20
INCARNATION = "first"
EXPORT = "export-1"


def model_of_megabytes() -> ModelConfig:
    """Return a hybrid whose state has four megabytes, more than sockets buffer."""
    mamba = MambaConfig(
        heads=16, head_dim=64, state_size=128, groups=1, conv_kernel=4, chunk_size=8, conv_bias=True,
        proj_bias=False, dt_limit=(0.0, 1.0), norm_eps=1e-5,
    )  # fmt: skip
    attention = AttentionConfig(heads=16, kv_heads=8, head_dim=64, bias=False, scale=1.0)
    return ModelConfig(
        family="nemotron_h", architecture="Small", hidden_size=8, vocab_size=16,
        layers=("mamba",) * 8 + ("attention",) * 8,
        mamba=mamba, gated_delta=None, attention=attention, mlp=None, norm_eps=1e-5,
        tie_embeddings=False, residual_in_fp32=False, max_position=1024, dtype="bfloat16",
        bos_token_id=None, eos_token_ids=(0,), parameters=1,
    )  # fmt: skip


LAYOUT = layout_of(model_of_megabytes())
WANTED = Wanted(depth=PAGES * LAYOUT.page_size, export=EXPORT)


def bundle(seed: int | None = None, layout: StateLayout = LAYOUT) -> tuple[bytearray, list[memoryview]]:
    """Return an arena and the buffers of a bundle in it: random bytes by `seed`, or zeros."""
    size = 4 * layout.slab_bytes
    arena = bytearray(size) if seed is None else bytearray(random.Random(seed).randbytes(size))
    first = 2 * layout.slab_bytes // layout.page_bytes
    pages = [first + number + (number > PAGES // 2) for number in range(PAGES)]
    return arena, arena_buffers(memoryview(arena), layout, 1, pages)


class HeldExports:
    """An export source with one export, which may be read again and again."""

    def __init__(self, buffers: list[memoryview], lease_seconds: float, clock: Clock) -> None:
        self.buffers = buffers
        self.lease_seconds = lease_seconds
        self.clock = clock
        self.opened = 0
        self.ends: list[bool] = []
        self.lease: Lease | None = None
        self.renewed: list[str] = []
        self.released: list[str] = []
        self.hot: list[HotPrefix] = []

    def open(self, wanted: Wanted) -> OpenExport | None:
        if wanted.export != EXPORT:
            return None
        self.opened += 1
        self.lease = Lease(EXPORT, self.lease_seconds, self.clock)
        return OpenExport(wanted.depth, wanted.base, self.buffers, self.lease)

    def close(self, export: OpenExport, *, delivered: bool) -> None:
        self.ends.append(delivered)

    def hottest(self, count: int) -> Sequence[HotPrefix]:
        return self.hot[:count]

    def release(self, export: str) -> bool:
        self.released.append(export)
        return export == EXPORT

    def renew(self, export: str) -> bool:
        self.renewed.append(export)
        return export == EXPORT


@contextmanager
def serving(source: HeldExports, **settings: Any) -> Iterator[tuple[TransferServer, Peer]]:
    """Run a transfer server on a free port of this machine."""
    server = TransferServer(settings.pop("layout", LAYOUT), INCARNATION, source, **settings)
    try:
        yield server, Peer(server.start("127.0.0.1", 0), INCARNATION)
    finally:
        server.close()


@contextmanager
def fault(point: str, action: Callable[[], None], *, server_side: bool | None = None) -> Iterator[list[str]]:
    """Call `action` once, when a connection of this process comes to `point`; yield the points passed.

    `server_side`: only connections of a server's threads, or only others; None = all.
    """
    passed: list[str] = []
    send_frame, receive_frame, send = Connection.send_frame, Connection.receive_frame, Connection.send
    receive_into = Connection.receive_into
    chunks = 0

    def other_side() -> bool:
        return (
            server_side is not None and (threading.current_thread().name == "transfer-reader") != server_side
        )

    def at(name: str) -> None:
        if other_side():
            return
        first = name not in passed
        passed.append(name)
        if name == point and first:
            action()

    def chunk(size: int) -> None:
        nonlocal chunks
        if size == CHUNK and not other_side():
            chunks += 1
            if chunks == 2:
                at("amid bytes")

    def patched_send_frame(self: Connection, body: bytes, limit: Any) -> None:
        at(f"before {msgspec.msgpack.decode(body)[0]}")
        send_frame(self, body, limit)

    def patched_receive_frame(self: Connection, most: int, limit: Any) -> bytearray:
        body = receive_frame(self, most, limit)
        at(f"after {msgspec.msgpack.decode(body)[0]}")
        return body

    def patched_send(self: Connection, pieces: Any, limit: Any) -> None:
        send(self, pieces, limit)
        chunk(sum(piece.nbytes for piece in pieces))

    def patched_receive_into(self: Connection, target: memoryview, limit: Any) -> None:
        receive_into(self, target, limit)
        chunk(target.nbytes)

    patches = {
        "send_frame": patched_send_frame,
        "receive_frame": patched_receive_frame,
        "send": patched_send,
        "receive_into": patched_receive_into,
    }
    originals = {name: getattr(Connection, name) for name in patches}
    for name, patch in patches.items():
        setattr(Connection, name, patch)
    try:
        yield passed
    finally:
        for name, original in originals.items():
            setattr(Connection, name, original)


@contextmanager
def forked(work: Callable[[Pipe], None]) -> Iterator[tuple[ForkProcess, Pipe]]:
    """Run `work` in a process of its own; kill it at the end. The pipe joins the two."""
    here, there = get_context("fork").Pipe()
    process = get_context("fork").Process(target=work, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        here.close()


def strike(number: int) -> Callable[[], None]:
    """Return an action that sends this process a signal, by its own thread, which does not go on before."""
    return lambda: signal.pthread_kill(threading.get_ident(), number)


def source_process(point: str, number: signal.Signals) -> Callable[[Pipe], None]:
    """Return the work of a source that strikes itself at `point`, and serves on if it is continued."""

    def work(pipe: Pipe) -> None:
        _, buffers = bundle(seed=1)
        import time

        with serving(HeldExports(buffers, 30.0, time.monotonic)) as (_, peer), fault(point, strike(number)):
            pipe.send(str(peer.address))
            pipe.poll(60)

    return work


def peer_at(address: str) -> Peer:
    """Return the peer that a process announced."""
    return Peer(Address.parse(address), INCARNATION)
