"""A Hub of one model over HTTP, for what downloads from one."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

COMMIT = "0" * 39 + "1"


@dataclass
class Hub:
    """One model, `owner/name`, with its files. `refuse`: status and error code of every answer instead."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    refuse: tuple[int, str] | None = None
    cut: str = ""
    """A file whose body ends half way."""
    served: list[str] = field(default_factory=list)
    """Files whose content was sent."""
    asked: list[str] = field(default_factory=list)
    """Files that were asked for, as `METHOD NAME`, whatever the answer."""


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.reply()

    def do_GET(self) -> None:
        self.reply()

    def reply(self) -> None:
        hub = self.hub
        if "/resolve/" in self.path:
            hub.asked.append(f"{self.command} {self.path.partition('/resolve/')[2].partition('/')[2]}")
        if hub.refuse is not None:
            status, code = hub.refuse
            self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "told so"})
        elif self.path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
            tree = [{"type": "file", "path": name, "size": len(data), "oid": digest(name, data)}
                    for name, data in hub.files.items()]  # fmt: skip
            about = {"id": "owner/name", "sha": COMMIT, "siblings": siblings}
            self.send(200, json.dumps(tree if "/tree/" in self.path else about).encode())
        else:
            name = self.path.partition("/resolve/")[2].partition("/")[2]
            data = hub.files.get(name)
            if data is None:
                self.send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
                return
            if self.command == "GET":
                hub.served.append(name)
            self.send(
                200, data, {"ETag": f'"{digest(name, data)}"', "X-Repo-Commit": COMMIT}, cut=name == hub.cut
            )

    def send(self, status: int, data: bytes, more: dict[str, str] | None = None, cut: bool = False) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = cut


def digest(name: str, data: bytes) -> str:
    """Return the Hub's checksum of a file: weights are large files there."""
    kind = hashlib.sha256 if name.endswith(".safetensors") else hashlib.sha1
    return kind(data).hexdigest()


@contextmanager
def small_hub(monkeypatch: pytest.MonkeyPatch, cache: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve the Hub; the client contacts it and stores its downloads below `cache`."""
    hub = Hub(files=files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    point_at(monkeypatch, hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", cache)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def point_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Set the address that the client reads from HF_ENDPOINT once per process."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
