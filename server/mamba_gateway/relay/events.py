"""Server-sent events: keeps what is passed on aligned to event boundaries, and ends a broken stream.

Nothing is parsed and no byte is changed. Only the part of an event that is not whole yet is held back, so
that an error event can follow at any time without spoiling a half-sent one.
"""

from mamba_edge.errors import ApiError

DONE = b"data: [DONE]\n\n"
HELD_LIMIT = 1024 * 1024
"""Beyond this many bytes a partial event is passed on as it is: memory stays bounded."""


class EventAligner:
    """Cuts a byte stream behind the last complete event."""

    def __init__(self) -> None:
        self._held = b""
        self._inside = False
        """Part of an unfinished event is already out."""

    def feed(self, chunk: bytes) -> bytes:
        """Bytes to pass on now; the rest waits for more."""
        data = self._held + chunk if self._held else chunk
        end = _last_boundary(data)
        if end == 0 and len(data) > HELD_LIMIT:
            self._held, self._inside = b"", True
            return data
        if end:
            self._inside = False
        out, self._held = data[:end], data[end:]
        return out

    def rest(self) -> bytes:
        """What is held when the stream ended well."""
        held, self._held = self._held, b""
        return held

    def cut(self, error: ApiError) -> bytes:
        """What ends a broken stream, as an engine ends one: the error event, then [DONE].

        A held partial event is dropped.
        """
        self._held = b""
        return (b"\n\n" if self._inside else b"") + error.event() + DONE


def _last_boundary(data: bytes) -> int:
    if data.endswith(b"\n\n"):  # as nearly every piece does
        return len(data)
    # A blank line ends an event; the line end may be LF, CR LF or CR (HTML standard, section 9.2.5).
    ends = (data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if mark in data)
    return max(ends, default=0)
