"""Models from a Hub: what is fetched, shown, kept and refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mamba_server.model.checkpoint.errors import DownloadFailed, InvalidSource, SourceNotFound
from mamba_server.model.checkpoint.source import resolve
from small_hub import Hub, point_at, small_hub

WEIGHTS = bytes(300_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    with small_hub(monkeypatch, str(tmp_path / "cache"), files) as found:
        yield found


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
    with pytest.raises(DownloadFailed, match="start again") as caught:
        resolve("hf://owner/name")
    assert caught.value.exit_code == 1
    hub.cut = ""
    hub.served.clear()
    assert (resolve("hf://owner/name") / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.served == ["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (403, "GatedRepo", DownloadFailed, "access to the model is restricted; .* set HF_TOKEN"),
        (401, "RepoNotFound", SourceNotFound, "the Hub has no model owner/name; .*HF_TOKEN if it is private"),
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
    with pytest.raises(SourceNotFound, match=r"^hf://owner/name: .*config\.json"):
        resolve("hf://owner/name")


@pytest.mark.parametrize("name", ["owner/-name", "owner/na--me", "owner/name.git"])
def test_a_name_that_no_repository_can_have_is_refused_without_asking(hub: Hub, name: str) -> None:
    hub.refuse = (500, "")
    with pytest.raises(InvalidSource, match=f"^hf://{name}: "):
        resolve(f"hf://{name}")
