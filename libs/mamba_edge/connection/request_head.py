"""The head of a request: its target split into parts, and its text without the offer of another protocol.

Used by the connections of our server (`limited_protocol`). No protocol that a client offers is used here, and
such an offer is ignored (RFC 9110, 7.8): the request is answered as if its client had not made it. Many
clients offer HTTP/2 on each plain connection.
"""

from collections.abc import Iterable
from urllib.parse import unquote

import httptools

_OFFER_HEADERS = frozenset((b"upgrade", b"http2-settings"))
KEPT_BYTES, KEPT_TARGETS = 128, 256
"""Length of the longest target that is cached, in bytes, and number of cached targets: clients invent
others."""


class _Targets(dict[bytes, tuple[str, bytes, bytes]]):
    """Cache that splits the target of a request into its path as text, its path as written, and its query.

    The query has no question mark. A target without a path raises `HttpParserInvalidURLError`,
    UnicodeDecodeError or AttributeError, which the parser reports as an error of the request.
    """

    def __missing__(self, target: bytes) -> tuple[str, bytes, bytes]:
        parsed = httptools.parse_url(target)
        path = parsed.path.decode("ascii")
        parts = unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
        if len(target) <= KEPT_BYTES:
            if len(self) >= KEPT_TARGETS:
                self.clear()  # frequent targets are soon cached again
            self[target] = parts
        return parts


targets = _Targets()
"""The cache of this process."""


def head_without_offer(
    method: bytes, target: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Return the head of a request without its offer of another protocol: first line, headers, empty line.

    `headers` have their names in lower case. Those that offer another protocol are left out.
    """
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option for option in value.split(b",") if option.strip().lower() not in _OFFER_HEADERS]
            if options:
                lines.append(b"connection:%b\r\n" % b",".join(options))
        elif name not in _OFFER_HEADERS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
