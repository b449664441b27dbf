"""Relays on the wires of a hand-over, which know its messages: something may happen just before each of them.

`TransferRelay` stands between two engines, `ExportRelay` between a gateway and a prefill engine. Each calls
the action that a test armed when the message is in its hands and the other side has not seen it yet.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

HEADER = struct.Struct(">4sHI")
PARTS = 3
"""Parts in which the bytes of a bundle are passed on."""
EXPORT_POINTS = ("export asked", "export answered")
"""Messages between the gateway and the prefill engine."""
TRANSFER_POINTS = (
    "hello",
    "ok",
    "fetch",
    "offer",
    *(f"bytes {number}" for number in range(1, PARTS + 1)),
    "checksums",
    "done",
    "valid",
    "end",
)
"""Messages between two engines, in order; `end` is the end of the connection that its reader closes."""


class Trigger:
    """An action that runs once, at one point."""

    def __init__(self, greeted: Callable[[int], object]) -> None:
        """Wait for nothing yet. `greeted` gets the port of every engine that opens a transfer."""
        self._one = threading.Lock()
        self._greeted = greeted
        self._point = ""
        self._action: Callable[[int], object] = greeted
        self.fired = threading.Event()

    def arm(self, point: str, action: Callable[[int], object]) -> None:
        """Run `action` when the next message named `point` comes; it gets the port of who connected."""
        with self._one:
            self._point, self._action = point, action
            self.fired.clear()

    def at(self, point: str, port: int) -> None:
        """Run the action if it is armed for `point`."""
        if point == "hello":
            self._greeted(port)
        with self._one:
            if point != self._point:
                return
            self._point, action = "", self._action
        action(port)
        self.fired.set()


class Relay:
    """A port before another port of this machine; a thread for each direction of each connection."""

    def __init__(self, target: int, trigger: Trigger) -> None:
        self.target, self.trigger = target, trigger
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _shut(end)

    def _accept(self) -> None:
        while True:
            try:
                near, address = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(end)
            ways = [
                threading.Thread(target=self._pass, args=(way, near, far, address[1]), daemon=True)
                for way in (self.there, self.back)
            ]
            for way in ways:
                way.start()
            threading.Thread(target=self._end, args=(ways, near, far), daemon=True).start()

    def _pass(
        self, way: Callable[[socket.socket, socket.socket, int], None], near: socket.socket,
        far: socket.socket, port: int,
    ) -> None:  # fmt: skip
        with suppress(OSError, EOFError):
            way(near, far, port)
        _shut(near)
        _shut(far)

    def _end(self, ways: list[threading.Thread], *ends: socket.socket) -> None:
        for way in ways:
            way.join()
        for end in ends:
            self._open.discard(end)
            end.close()

    def there(self, near: socket.socket, far: socket.socket, port: int) -> None:
        """Pass on what comes from those who connected."""
        raise NotImplementedError

    def back(self, near: socket.socket, far: socket.socket, port: int) -> None:
        """Pass on the answers."""
        raise NotImplementedError


class TransferRelay(Relay):
    """A relay before a transfer server."""

    def there(self, near: socket.socket, far: socket.socket, port: int) -> None:
        try:
            while True:
                frame, name, _ = _frame(near)
                self.trigger.at(name, port)
                far.sendall(frame)
        except EOFError:
            self.trigger.at("end", port)
            raise

    def back(self, near: socket.socket, far: socket.socket, port: int) -> None:
        while True:
            frame, name, fields = _frame(far)
            self.trigger.at(name, port)
            near.sendall(frame)
            if name == "offer":
                for number, part in enumerate(_parts(far, fields[2]), 1):
                    self.trigger.at(f"bytes {number}", port)
                    near.sendall(part)


class ExportRelay(Relay):
    """A relay before the API of a prefill engine, which names a transfer relay as the place of its states."""

    def __init__(self, target: int, trigger: Trigger, engine: str, relay: str) -> None:
        """Replace the address `engine` by `relay` in every answer; both have the same length."""
        assert len(engine) == len(relay)
        self._engine, self._relay = engine.encode(), relay.encode()
        super().__init__(target, trigger)

    def there(self, near: socket.socket, far: socket.socket, port: int) -> None:
        while raw := near.recv(1 << 16):
            if b"x-mambaserve-hand-over: export" in raw.lower():
                self.trigger.at("export asked", port)
            far.sendall(raw)

    def back(self, near: socket.socket, far: socket.socket, port: int) -> None:
        while raw := far.recv(1 << 16):
            if b'"handover"' in raw:
                self.trigger.at("export answered", port)
            near.sendall(raw.replace(self._engine, self._relay))


@contextmanager
def relays(
    transfer_port: int, api_port: int, greeted: Callable[[int], object]
) -> Iterator[tuple[ExportRelay, Trigger]]:
    """Run both relays before a prefill engine; yield the one for the gateway, and their trigger."""
    trigger = Trigger(greeted)
    wire = TransferRelay(transfer_port, trigger)
    try:
        addresses = (f"127.0.0.1:{transfer_port}", f"127.0.0.1:{wire.port}")
        export = ExportRelay(api_port, trigger, *addresses)
        try:
            yield export, trigger
        finally:
            export.close()
    finally:
        wire.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _frame(end: socket.socket) -> tuple[bytes, str, list[Any]]:
    header = _exactly(end, HEADER.size)
    body = _exactly(end, HEADER.unpack(header)[2])
    name, *fields = msgspec.msgpack.decode(body)
    return header + body, name, fields


def _parts(end: socket.socket, size: int) -> Iterator[bytes]:
    edges = [size * number // PARTS for number in range(PARTS + 1)]
    for start, stop in itertools.pairwise(edges):
        yield _exactly(end, stop - start)


def _exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = end.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
