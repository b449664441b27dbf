"""Requests that a client sends behind a request that is not answered yet.

One connection can bring thousands of them in one read. They wait as bytes, and not as parsed requests:
otherwise the reads of a few hundred such connections would block the event loop for a second. The connections
of our server (`limited_protocol`) hold them here; this module does not interpret requests.
"""

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

_HEAD_END = b"\r\n\r\n"
_NEWLINES = b"\r\n"


class HoldingFlow(FlowControl):
    """The flow of one connection, which stays paused while more is held than should be read."""

    full = False

    def resume_reading(self) -> None:
        """Read on if little is held."""
        if self.read_paused and not self.full:
            super().resume_reading()


class HeldRequests:
    """The bytes that a connection has read and not parsed yet."""

    def __init__(self, flow: HoldingFlow) -> None:
        self._flow = flow
        self.data = b""
        """The bytes that are held, behind those before `_start`; empty = nothing is held."""
        self._start = 0

    def hold(self, data: bytes, start: int = 0) -> None:
        """Keep the data from `start` on, behind the bytes that are held already."""
        if self.data:
            data, start = self.data[self._start :] + data[start:], 0
        self.data, self._start = data, start
        if len(data) - start > HIGH_WATER_LIMIT:
            self._flow.full = True
            self._flow.pause_reading()

    def release(self) -> tuple[bytes, int]:
        """Return all bytes that are held, and the position in them where the next request begins."""
        held = self.data, self._start
        self.data, self._start = b"", 0
        self._flow.full = False
        return held


def end_of_part(data: bytes, start: int, *, continued: bool) -> int:
    """Return where to stop feeding a parser from `start` on, so that it finishes at most one request.

    Each head and each body in chunks ends with an empty line. `continued`: the data continues a head or a
    body in chunks, whose empty line may have begun before the data.
    """
    first = data[start : start + len(_HEAD_END)]
    if first[:1] in (b"\r", b"\n"):
        if continued:
            return start + len(first) - len(first.lstrip(_NEWLINES))
        # Empty lines between requests are skipped.
        search = len(data) - len(data[start:].lstrip(_NEWLINES))
    else:
        search = start
    position = data.find(_HEAD_END, search)
    return len(data) if position < 0 else position + len(_HEAD_END)
