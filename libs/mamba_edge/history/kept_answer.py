"""`KeptAnswer`: sends an answer to a client, and keeps its response before the client gets the answer's end.

A request that follows at once, at whatever gateway, thus finds the response. The parts before the end are not
slowed down: they go through `begin` and `write`, where the client's side has these methods.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Message

from mamba_edge.exchange.asgi_responses import EVENT_STREAM
from mamba_edge.exchange.request_body import find_header
from mamba_edge.history.response_history import OpenTurn

HISTORY_HEADER = b"x-mambaserve-history"
"""Request header from gateways to engines. It says that the input is complete, and that the gateway keeps the
response (`kept`) or does not (`none`), so that the engine keeps nothing."""
KEPT, NOT_KEPT = b"kept", b"none"
_LAST_EVENTS = (b"event: response.completed\n", b"event: response.incomplete\n")


class _LastEvent(msgspec.Struct):
    response: msgspec.Raw


class KeptAnswer:
    """A `send` of ASGI that keeps the response of one turn before it sends the answer's last part.

    It sends through the `send` of the client, or of the relay of a gateway.
    """

    def __init__(self, send: Any, turn: OpenTurn, direct: Any = None) -> None:
        """Send messages through `send`, and other parts through `direct` (None = `send` itself).

        `begin` and `write` of `direct`, if it has them, send parts at once and without messages of ASGI.
        """
        direct = send if direct is None else direct
        self._send, self._turn = send, turn
        self._begin, self._write = getattr(direct, "begin", None), getattr(direct, "write", None)
        self._streamed = self._kept = False
        self._status = 0
        self._size: int | None = None
        self._held = bytearray()
        """Bytes of the answer read so far that belong to the response."""

    async def __call__(self, message: Message) -> None:
        """Send one message. Before the message that completes the answer, keep the response."""
        if message["type"] == "http.response.start":
            self._note(message["status"], message["headers"])
        elif self._status == 200 and not self._kept:
            ended = not message.get("more_body", False)
            if (response := self._read(message.get("body", b""), ended=ended)) is not None:
                self._kept = True
                await self._turn.keep(response)
        await self._send(message)

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]], part: bytes, more: bool) -> bool:
        """Send the status, the headers and the first part at once, and return whether they were sent.

        If not, nothing was sent, and the caller has to send messages: the part completes the answer, or the
        answer is no stream, or `direct` cannot send.
        """
        if self._begin is None or (status == 200 and (not more or _has_end(part))):
            return False
        self._note(status, headers)
        if status == 200 and not self._streamed:
            return False
        return bool(self._begin(status, headers, part, more))

    def write(self, part: bytes) -> bool:
        """Send a further part at once, and return whether it was sent.

        If not, nothing was sent, and the caller has to send a message: the part completes the answer, or
        `direct` cannot send.
        """
        if self._write is None or self._held or _has_end(part):
            return False
        return bool(self._write(part))

    def _note(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._status = status
        self._streamed = (find_header(headers, b"content-type") or b"").startswith(EVENT_STREAM[0][1][:17])
        length = find_header(headers, b"content-length")
        self._size = int(length) if length is not None and length.isdigit() else None

    def _read(self, part: bytes, *, ended: bool) -> bytes | None:
        """Add a part of the answer; return the JSON of the response once all of it has arrived, else None.

        `ended` says whether this is the last part. The result is also None if the last event of a stream
        holds no response.
        """
        if not self._streamed:
            self._held += part
            whole = len(self._held) == self._size if self._size is not None else ended
            return bytes(self._held) if whole or ended else None
        if not self._held:
            places = [place for name in _LAST_EVENTS if (place := part.find(name)) >= 0]
            if not places:
                return None
            part = part[min(places) :]
        self._held += part
        event, end, _ = bytes(self._held).partition(b"\n\n")
        if not end:
            return None
        data = event.partition(b"\ndata: ")[2]
        try:
            return bytes(msgspec.json.decode(data, type=_LastEvent).response)
        except msgspec.DecodeError:
            return None


def _has_end(part: bytes) -> bool:
    return any(name in part for name in _LAST_EVENTS)
