"""Models from a Hub, here a small HTTP server that speaks its API: what is fetched, shown and refused."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from mamba_server.model.errors import DownloadFailed, InvalidSource, SourceNotFound
from mamba_server.model.source import resolve

COMMIT = "0" * 39 + "1"
WEIGHTS = bytes(300_000)


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
        if hub.refuse is not None:
            status, code = hub.refuse
            self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "told so"})
        elif self.path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
            tree = [{"type": "file", "path": name, "size": len(data), "oid": digest(data)}
                    for name, data in hub.files.items()]  # fmt: skip
            about = {"id": "owner/name", "sha": COMMIT, "siblings": siblings}
            self.send(200, json.dumps(tree if "/tree/" in self.path else about).encode())
        else:
            name = self.path.rpartition(f"/{COMMIT}/")[2]
            data = hub.files[name]
            if self.command == "GET":
                hub.served.append(name)
            self.send(200, data, {"ETag": f'"{digest(data)}"', "X-Repo-Commit": COMMIT}, cut=name == hub.cut)

    def send(self, status: int, data: bytes, more: dict[str, str] | None = None, cut: bool = False) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = cut


def digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    found = Hub(files={"config.json": b"{}", "model.safetensors": WEIGHTS})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": found}))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    point_at(monkeypatch, found.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def point_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """What HF_ENDPOINT sets, which the client reads once per process."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


Call = tuple[str, int, int]
Watch = Callable[[str, int, int], None]


@pytest.fixture
def watched() -> tuple[list[Call], Watch]:
    calls: list[Call] = []
    return calls, lambda *call: calls.append(call)


def test_a_model_is_fetched_with_its_progress_in_bytes(hub: Hub, watched: tuple[list[Call], Watch]) -> None:
    calls, progress = watched
    path = resolve("hf://owner/name", progress)
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    total = len(WEIGHTS) + 2
    assert calls[0] == ("download", 0, total)
    assert calls[-1] == ("download", total, total)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_what_a_model_does_not_need_stays_on_the_hub(hub: Hub) -> None:
    hub.files |= {"pytorch_model.bin": b"pickled", "original/weights.pth": b"pickled", "chart.png": b"x"}
    hub.files |= {"tokenizer.json": b"[]", "chat_template.jinja": b"hello"}
    path = resolve("hf://owner/name")
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert {each.name for each in path.rglob("*")} == wanted
    assert set(hub.served) == wanted


def test_a_second_start_fetches_nothing_and_shows_no_download(
    hub: Hub, watched: tuple[list[Call], Watch]
) -> None:
    first = resolve("hf://owner/name")
    fetched = len(hub.served)
    calls, progress = watched
    assert resolve("hf://owner/name", progress) == first
    assert len(hub.served) == fetched
    assert calls == []


def test_a_model_in_the_cache_is_served_while_the_hub_is_away(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve("hf://owner/name")
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert resolve("hf://owner/name") == first


def test_an_interrupted_download_keeps_the_files_that_have_arrived(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client's own pauses between its attempts.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    hub.cut = "model.safetensors"
    with pytest.raises(DownloadFailed, match="start again to go on where it stopped") as caught:
        resolve("hf://owner/name")
    assert caught.value.exit_code == 1
    hub.cut = ""
    hub.served.clear()
    assert (resolve("hf://owner/name") / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.served == ["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (403, "GatedRepo", DownloadFailed, "access is restricted; accept its terms .* set HF_TOKEN"),
        (401, "RepoNotFound", SourceNotFound, r"the Hub has no model owner/name \(or it is private"),
        (404, "RepoNotFound", SourceNotFound, "the Hub has no model owner/name"),
        (404, "RevisionNotFound", SourceNotFound, "the Hub has no revision 'v9' of owner/name"),
    ],
)  # fmt: skip
def test_what_the_hub_refuses_is_told_with_the_way_out(
    hub: Hub, status: int, code: str, error: type[Exception], words: str
) -> None:
    hub.refuse = (status, code)
    with pytest.raises(error, match=rf"^hf://owner/name@v9: {words}"):
        resolve("hf://owner/name@v9")


def test_a_repository_without_a_configuration_is_no_model(hub: Hub) -> None:
    del hub.files["config.json"]
    with pytest.raises(SourceNotFound, match=r"^hf://owner/name: there is no config\.json in "):
        resolve("hf://owner/name")


@pytest.mark.parametrize("name", ["owner/-name", "owner/na--me", "owner/name.git"])
def test_a_name_that_no_repository_can_have_is_refused_without_asking(hub: Hub, name: str) -> None:
    hub.refuse = (500, "")
    with pytest.raises(InvalidSource, match=f"^hf://{name}: "):
        resolve(f"hf://{name}")
