"""A web server of one directory, for what downloads from one: with ranges or without, and with faults."""

import contextlib
import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

from eventually import wait_until


@dataclass
class FileServer:
    """The files, by path without a leading slash."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    """Whether parts of files are sent."""
    token: str = ""
    """Bearer token that is required; empty = none."""
    status: int = 0
    """Status of every answer instead; 0 = the right one."""
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    """Parts of files that were sent: path, begin and end."""
    before: Callable[[str, int], int | None] = lambda _path, _start: None
    """Called before a part is sent; returns after how many bytes the connection breaks, or None."""
    open: set[object] = field(default_factory=set)
    """Connections that were accepted and have not ended."""

    def wait_for_end(self) -> None:
        """Wait until all requests of clients that have gone were read, so that none is recorded later."""
        # Connections are accepted in their order, so this one is the last.
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{self.url}/nothing-of-this-name", timeout=60)
        wait_until(lambda: not self.open)


class Handler(BaseHTTPRequestHandler):
    served: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.reply()

    def do_GET(self) -> None:
        self.reply()

    def reply(self) -> None:
        served, path = self.served, unquote(self.path.partition("?")[0]).lstrip("/")
        data = served.files.get(path)
        if served.token and self.headers["Authorization"] != f"Bearer {served.token}":
            return self.send(401, b"")
        if served.status:
            return self.send(served.status, b"")
        if data is None:
            return self.send(404, b"")
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        if self.headers["If-Match"] not in (None, tag):
            return self.send(412, b"")
        headers = {"ETag": tag, "Accept-Ranges": "bytes" if served.ranges else "none"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        if asked is None or not served.ranges:
            return self.send(200, data, headers, path)
        start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return self.send(206, data[start:end], headers, path, start)

    def send(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, path: str = "", start: int = 0
    ) -> None:
        cut: int | None = None
        if path and self.command == "GET":
            self.served.asked.append((path, start, start + len(data)))
            cut = self.served.before(path, start)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(data[:cut])
            self.close_connection = cut is not None


class Server(ThreadingHTTPServer):
    """Server that records its connections in `served.open`."""

    daemon_threads = True
    served: FileServer

    def process_request(self, request: Any, client_address: Any) -> None:
        self.served.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.served.open.discard(request)


@contextmanager
def file_server(files: dict[str, bytes]) -> Iterator[FileServer]:
    """Serve the files."""
    served = FileServer(files=files)
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"served": served}))
    server.served = served
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
