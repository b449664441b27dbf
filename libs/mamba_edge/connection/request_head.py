"""The head of a request: its target taken apart, and its text without the offer of another protocol.

Used by the connections of our server (`limited_protocol`). No protocol that a client offers is taken up here,
and an offer that is not taken up is ignored (RFC 9110, 7.8): the request is answered as if its client had not
made it. Many clients offer HTTP/2 on each plain connection.
"""

from collections.abc import Iterable
from urllib.parse import unquote

import httptools

_OFFER_HEADERS = frozenset((b"upgrade", b"http2-settings"))
KEPT_BYTES, KEPT_TARGETS = 128, 256
"""Longest target that is kept, and most of them: clients make up others."""


class _Targets(dict[bytes, tuple[str, bytes, bytes]]):
    """By target: its path as text, as it was written, and its query, without the question mark.

    Raises `HttpParserInvalidURLError`, UnicodeDecodeError or AttributeError for what has no path, which the
    parser makes an error of the request.
    """

    def __missing__(self, target: bytes) -> tuple[str, bytes, bytes]:
        parsed = httptools.parse_url(target)
        path = parsed.path.decode("ascii")
        found = unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
        if len(target) <= KEPT_BYTES:
            if len(self) >= KEPT_TARGETS:
                self.clear()  # those that come again are soon back
            self[target] = found
        return found


targets = _Targets()
"""Of one process."""


def head_without_offer(
    method: bytes, target: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Request line and headers, with the empty line behind them; names of `headers` in lower case."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [each for each in value.split(b",") if each.strip().lower() not in _OFFER_HEADERS]
            if options:
                lines.append(b"connection:%b\r\n" % b",".join(options))
        elif name not in _OFFER_HEADERS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
