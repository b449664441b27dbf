"""An engine that notes every byte it gets, in a thread of its own: what should not pass is seen."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

QUESTIONS = ("/readyz", "/metrics", "/v1/models", "/v1/tokenizer", "/v1/prefix_changes", "/v1/usage_changes")
"""Paths that a gateway requests from an engine on its own."""
_ANSWERS = {"/readyz": b'{"status":"ready"}', "/metrics": b"", "/v1/models": b'{"data":[{"id":"m"}]}'}
_COMPLETION = b'{"id":"c","object":"text_completion","choices":[{"index":0,"text":"t"}]}'


class RecordingUpstream(socketserver.ThreadingTCPServer):
    """At `url`. `seen` has the bytes of each connection, in the order they came."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.connections: list[bytearray] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def requests(self) -> list[bytes]:
        """All that came and is none of a gateway's own questions: heads with their bodies."""
        return [
            part
            for each in list(self.connections)
            for part in _requests(bytes(each))
            if not _is_question(part)
        ]


def _requests(raw: bytes) -> Iterator[bytes]:
    while raw:
        head, ended, rest = raw.partition(b"\r\n\r\n")
        length = _length(head)
        yield head + ended + rest[:length]
        raw = rest[length:]


def _length(head: bytes) -> int:
    lines = head.lower().splitlines()
    return next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)


def _is_question(request: bytes) -> bool:
    head, ended, body = request.partition(b"\r\n\r\n")
    target = head.split(b"\r\n")[0]
    is_question = any(target.split(b"?")[0].startswith(f"GET {path}".encode()) for path in QUESTIONS)
    return is_question and bool(ended) and not body


class _Connection(socketserver.BaseRequestHandler):
    server: RecordingUpstream

    def handle(self) -> None:
        came = bytearray()
        self.server.connections.append(came)
        answered = 0
        with contextlib.suppress(OSError):
            while part := self.request.recv(1 << 16):
                came += part
                whole = [each for each in _requests(bytes(came)) if _is_whole(each)]
                for each in whole[answered:]:
                    self.request.sendall(_answer(each))
                answered = len(whole)


def _is_whole(request: bytes) -> bool:
    head, ended, body = request.partition(b"\r\n\r\n")
    return bool(ended) and len(body) == _length(head)


def _answer(request: bytes) -> bytes:
    method, target = request.split(b" ", 2)[:2]
    path = target.decode("latin-1").partition("?")[0]
    body = _COMPLETION if method == b"POST" else _ANSWERS.get(path)
    status = b"404 Not Found" if body is None else b"200 OK"
    kind = b"text/plain" if path == "/metrics" else b"application/json"
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (status, kind, len(body or b"")) + (body or b"")


@contextlib.contextmanager
def recording_upstream() -> Iterator[RecordingUpstream]:
    """Run an upstream that listens for the length of the block."""
    with RecordingUpstream() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
