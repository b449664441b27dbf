"""Requests as a hostile client writes them: bytes for a socket, right and wrong HTTP, and what comes back.

Drawn by hypothesis from parts that parsers are known to read differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hypothesis import strategies as st

MARK = b"mark-of-the-stranger"
"""Stands in every body, so that it is known again wherever it turns up."""
BODY = b'{"model":"m","prompt":"' + MARK + b'"}'
OPEN_PATHS = ("/livez", "/readyz", "/health", "/metrics", "/version")
"""Paths that need no key."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


@dataclass(frozen=True)
class RawRequest:
    """Bytes of a request, and whether its path is open to everybody."""

    raw: bytes
    is_open: bool


_SHAPES = (
    "{p}", "/{p}", "//x{p}", "/.{p}", "/x/..{p}", "/x/%2e%2e{p}", "/metrics/..{p}", "/livez/..{p}",
    "{p}/", "{p}//", "{p}/.", "{p};a=b", "{p}?api_key={k}", "{p}?a#b", "{p}#", "{p}%00", "{p}%20",
    "{p}\x00", "{p}\xff", "\\{p}", "http://127.0.0.1{p}", "http://stranger:1{p}", "//stranger{p}",
    "HTTP://{k}@127.0.0.1{p}", "127.0.0.1:80", "*", "{p} HTTP/1.1 x", "",
)  # fmt: skip
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda path: path,
    lambda path: f"/%{ord(path[1]):02x}{path[2:]}",
    lambda path: f"{path[:-1]}%{ord(path[-1]):02X}",
    lambda path: path[0] + path[1:].replace("/", "%2f"),
    lambda path: f"/%25{ord(path[1]):02x}{path[2:]}",
    str.upper,
    lambda path: path.replace("/", "//"),
)


def _target(path: str, key: str, shape: str, spelt: Callable[[str], str]) -> bytes:
    return shape.format(p=spelt(path), k=key).encode("latin-1")


def wrong_credentials(key: str) -> list[bytes]:
    """Return header lines without an accepted key, though some look like it; `key` is an accepted one."""
    lines = (
        f"Authorization: Bearer {key}x", f"Authorization: Bearer {key[:-1]}", "Authorization: Bearer ",
        "Authorization:", f"Authorization: {key}", f"Authorization: Basic {key}",
        f"Authorization: Bearer {key.upper()}", f"Authorization: Bearer{key}",
        f"Authorization: Bearer {key},{key}", f"Authorization: Bearer {key} {key}",
        f"Authorization: Bearer {key}\x00", f"Authorization: Bearer \xff{key}",
        f'Authorization: Bearer "{key}"',
        f"authorization: token {key}", f"AUTHORIZATION: bearer {key}x", f"Authorization : Bearer {key}",
        f"Authorisation: Bearer {key}", f"X-Authorization: Bearer {key}", f"Authorization_: Bearer {key}",
        f"Proxy-Authorization: Bearer {key}", f"X-Api-Key: Bearer {key}", f"Api-Key: {key}",
        f"Cookie: Authorization=Bearer {key}", f"X-Forwarded-Authorization: Bearer {key}",
        f"X-Original-URL: /livez\r\nX-Rewrite-URL: /livez\r\nX-Key: {key}",
        f"X: y\r\n Authorization: Bearer {key}", f"X-Mambaserve-Explain: 1, {key}",
        "Authorization: Bearer\r\n no-key", "Authorization: Bearer # a comment", "Authorization: Bearer *",
    )  # fmt: skip
    return [line.encode("latin-1") for line in lines]


def _chunked(*sizes: bytes) -> bytes:
    return b"".join(size + b"\r\n" + BODY + b"\r\n" for size in sizes) + b"0\r\n\r\n"


_SIZE = b"%x" % len(BODY)
_LENGTH = b"Content-Length: %d" % len(BODY)
_NEXT = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + _LENGTH + b"\r\n\r\n" + BODY
_CHUNKS = b"Transfer-Encoding: chunked"
FRAMINGS: tuple[tuple[bytes, bytes], ...] = (
    (_LENGTH, BODY),
    (_LENGTH, BODY + _NEXT),
    (_LENGTH, BODY[:-1]),
    (b"Content-Length: 0", BODY),
    (b"Content-Length: 0", _NEXT),
    (b"", _NEXT),
    (b"Content-Length: 5", BODY),
    (_LENGTH + b"\r\n" + _LENGTH, BODY),
    (_LENGTH + b"\r\nContent-Length: 5", BODY + _NEXT),
    (b"Content-Length: 5, %d" % len(BODY), BODY),
    (b"Content-Length: +%d" % len(BODY), BODY),
    (b"Content-Length: -1", BODY),
    (b"Content-Length: 0x10", BODY),
    (b"Content-Length: 99999999999999999999999", BODY),
    (b"Content-Length : %d" % len(BODY), BODY),
    (b"Content-Length:\r\n %d" % len(BODY), BODY),
    (_CHUNKS, _chunked(_SIZE)),
    (_CHUNKS, _chunked(_SIZE) + _NEXT),
    (_CHUNKS, _chunked(b"g")),
    (_CHUNKS, _chunked(b"-1")),
    (_CHUNKS, _chunked(b"0x" + _SIZE)),
    (_CHUNKS, _chunked(b"f" * 17)),
    (_CHUNKS, _chunked(_SIZE + b";a=\x00")),
    (_CHUNKS, _chunked(b" " + _SIZE)),
    (_CHUNKS, _chunked(_SIZE).replace(b"\r\n", b"\n")),
    (_CHUNKS, b"0\r\nAuthorization: Bearer x\r\n\r\n" + _NEXT),
    (_CHUNKS + b"\r\n" + _LENGTH, _chunked(_SIZE)),
    (_CHUNKS + b"\r\nContent-Length: 4", _chunked(_SIZE) + _NEXT),
    (_LENGTH + b"\r\n" + _CHUNKS, b"0\r\n\r\n" + _NEXT),
    (_CHUNKS + b"\r\n" + _CHUNKS, _chunked(_SIZE)),
    (_CHUNKS + b", identity", _chunked(_SIZE)),
    (b"Transfer-Encoding: xchunked", _chunked(_SIZE) + _NEXT),
    (b"Transfer-Encoding: identity", BODY),
    (b"Transfer-Encoding : chunked", _chunked(_SIZE) + _NEXT),
    (b"Transfer-Encoding:\x0bchunked", _chunked(_SIZE)),
    (b"Transfer-Encoding:\r\n chunked", _chunked(_SIZE)),
    (b"X: y\nTransfer-Encoding: chunked", _chunked(_SIZE) + _NEXT),
    (b"Transfer_Encoding: chunked", _chunked(_SIZE)),
)
"""Header lines that say how long a body is, and what follows the head."""
_MORE = (
    b"Content-Type: application/json", b"Connection: close", b"Connection: Authorization, keep-alive",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13",
    b"Expect: 100-continue", b"Host: y", b"X-Http-Method-Override: GET", b"Max-Forwards: 0", b"no colon",
    b": no name", b"X: \x00", b"X: \r y", b"X-Forwarded-For: 127.0.0.1", b"Origin: null",
    b"Content-Encoding: gzip",
)  # fmt: skip
_METHODS = (
    b"POST", b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT",
    b"post", b"POST\x00", b"PRI", b" POST", b"",
)  # fmt: skip
_VERSIONS = (
    b" HTTP/1.1", b" HTTP/1.0", b" HTTP/0.9", b" HTTP/2.0", b" http/1.1", b" HTTP/1.1 ",
    b"\tHTTP/1.1", b"",
)  # fmt: skip


_HOSTS: tuple[list[bytes], ...] = ([b"Host: x"], [], [b"hOsT:x"], [b"Host: x", b"Host: y"])
_ENDS = (b"\r\n", b"\n", b"\r")
_Twist = tuple[str, Any]


def _twists(key: str) -> dict[str, list[Any]]:
    """Return the variants of each part of a request; the first variant is the correct one."""
    return {
        "method": list(_METHODS), "shape": list(_SHAPES), "spelling": list(_SPELLINGS),
        "version": list(_VERSIONS), "host": list(_HOSTS), "credentials": [None, *wrong_credentials(key)],
        "more": [None, *_MORE], "framing": list(FRAMINGS), "end": list(_ENDS),
    }  # fmt: skip


def _request(path: str, key: str, twists: list[_Twist]) -> RawRequest:
    """Return a request that is correct but for the twists: where a part occurs several times, all count."""
    parts = {name: values[0] for name, values in _twists(key).items()} | dict(twists)
    more = [value for name, value in twists if name in ("credentials", "more") and value]
    framing, body = parts["framing"]
    target = _target(path, key, parts["shape"], parts["spelling"])
    first = parts["method"] + b" " + target + parts["version"]
    lines = [first, *parts["host"], *more, *([framing] if framing else [])]
    end = parts["end"]
    return RawRequest(end.join(lines) + end + end + body, path in OPEN_PATHS)


def one_twist(path: str, key: str) -> list[RawRequest]:
    """Return all requests of `path` that differ from a correct one without a key in one part."""
    return [_request(path, key, [(name, value)]) for name, values in _twists(key).items() for value in values]


def keyless_requests(paths: tuple[str, ...], key: str) -> st.SearchStrategy[RawRequest]:
    """Return a strategy of requests with several twists and no accepted key, though `key` is one."""
    every = [(name, value) for name, values in _twists(key).items() for value in values]
    twists = st.lists(st.sampled_from(every), min_size=2, max_size=4)
    return st.builds(_request, st.sampled_from(paths), st.just(key), twists)


def statuses(answer: bytes) -> list[int]:
    """Return the statuses of all answers on one connection."""
    return [int(status) for status in _STATUS.findall(answer)]


async def _exchange_one(url: str, raw: bytes) -> bytes:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = b""
    # A server that refuses may reset the connection while more is on its way: what it said is here by then.
    with contextlib.suppress(ConnectionError):
        writer.write(raw)
        while part := await reader.read(1 << 16):
            answer += part
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def exchange(url: str, requests: list[bytes]) -> list[bytes]:
    """Send each request on its own connection, all at once; return the answers until the server closes."""

    async def all_of_them() -> list[bytes]:
        return await asyncio.gather(*(_exchange_one(url, raw) for raw in requests))

    return asyncio.run(all_of_them())
