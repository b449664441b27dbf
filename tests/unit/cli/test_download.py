"""`mambaserve download`: what it fetches, what it reports, and what it ends with."""

import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.main import application
from mamba_operator.model.download_poller import read_download
from mamba_planner.arithmetic import WeightsSize
from mamba_planner.model_report import MAX_BYTES, ModelReport
from mamba_server.model.checkpoint.source import resolve
from mamba_server.model.checkpoint.weight_files import INDEX
from small_hub import COMMIT, Hub, small_hub
from testcluster.free_ports import free_port

CONFIG = {"model_type": "mamba2", "hidden_size": 64}


def weights() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(32)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights()}
    with small_hub(monkeypatch, str(tmp_path / "cache"), files) as found:
        yield found


def run(*arguments: str) -> str:
    result = CliRunner().invoke(application("download"), ["download", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_report_has_commit_configuration_and_the_size_of_the_weights(hub: Hub, tmp_path: Path) -> None:
    run("hf://owner/name", "--report", str(tmp_path / "report"))
    found = ModelReport.read((tmp_path / "report").read_text())
    assert found == ModelReport(COMMIT, CONFIG, WeightsSize(32, 8, 8, rows=4))
    assert found.config == CONFIG


def test_what_was_downloaded_is_found_by_its_commit_without_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("hf://owner/name", "--report", str(tmp_path / "report"))
    fetched = len(hub.served)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.refuse = (500, "")
    path = resolve(f"hf://owner/name@{COMMIT}")
    assert (path / "model.safetensors").read_bytes() == weights()
    assert len(hub.served) == fetched


def test_what_an_attempt_has_left_is_no_model_while_the_hub_is_away(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    parts = {f"model-{number}.safetensors": weights() for number in (1, 2)}
    hub.files = {"config.json": hub.files["config.json"], INDEX: json.dumps(index).encode(), **parts}
    run(f"hf://owner/name@{COMMIT}")
    [shard] = (tmp_path / "cache").rglob("snapshots/*/model-2.safetensors")
    shard.unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(RunFailed, match="the Hub cannot be reached"):
        run(f"hf://owner/name@{COMMIT}")


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("builtin://tiny-recall", InvalidInput, "is no model to download"),
        ("hf://only-a-name", InvalidInput, "hf://OWNER/NAME"),
    ],
)
def test_other_places_are_refused(hub: Hub, uri: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(uri)


def test_a_model_that_the_hub_does_not_have_is_wrong_input(hub: Hub) -> None:
    hub.refuse = (404, "RepoNotFound")
    with pytest.raises(InvalidInput, match="no model owner/name"):
        run("hf://owner/name")


def test_a_hub_that_breaks_off_is_worth_another_attempt(hub: Hub) -> None:
    hub.refuse = (401, "GatedRepo")
    with pytest.raises(RunFailed, match="HF_TOKEN"):
        run("hf://owner/name")


def test_a_model_without_safetensors_is_refused_with_what_to_choose(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(InvalidInput, match="published in that format"):
        run("hf://owner/name")


def test_a_model_that_the_disk_does_not_hold_is_not_begun(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(10))
    with pytest.raises(InvalidInput, match=r"has 10 free.*spec\.model\.cache"):
        run("hf://owner/name")
    assert hub.served == []


def stored(cache: Path, name: str, commit: str, size: int) -> None:
    """Store a copy of another model in the layout of the Hub's client."""
    model = cache / f"models--{name.replace('/', '--')}"
    blob, link = model / "blobs" / f"{commit}-blob", model / "snapshots" / commit / "model.safetensors"
    for file in (blob, link, model / "refs" / "main"):
        file.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(bytes(size))
    link.symlink_to(Path("../../blobs") / blob.name)
    (model / "refs" / "main").write_text(commit)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a volume of 5,000 bytes with two old copies of a model, one of another, and half a download."""

    class Usage(NamedTuple):
        free: int

    cache = tmp_path / "cache"

    def usage(_: object) -> Usage:
        files = [one for one in cache.rglob("*") if one.is_file() and not one.is_symlink()]
        return Usage(5_000 - sum(one.stat().st_size for one in files))

    for name, commit in (("owner/name", "a" * 40), ("owner/name", "b" * 40), ("owner/other", "c" * 40)):
        stored(cache, name, commit, 1_200)
    (cache / "models--owner--other" / "blobs" / "x.1.incomplete").write_bytes(bytes(200))
    monkeypatch.setattr("shutil.disk_usage", usage)
    return cache


def test_a_full_volume_gives_the_room_of_copies_that_nothing_needs(hub: Hub, full: Path) -> None:
    hub.files["more.json"] = b" " * 2_000
    run("hf://owner/name", "--make-room", "--keep", "b" * 40)
    [kept] = full.glob(f"models--owner--name/snapshots/{'b' * 40}/model.safetensors")
    assert kept.read_bytes() == bytes(1_200)
    assert (resolve("hf://owner/name") / "more.json").stat().st_size == 2_000
    assert sorted(one.name for one in full.glob("models--*/snapshots/*")) == [COMMIT, "b" * 40]
    sizes = [one.stat().st_size for one in full.rglob("blobs/*")]
    assert sum(sizes) < 1_200 + 2_000 + 500, "what nothing links to is gone as well"


def test_a_volume_with_room_for_one_more_keeps_its_copies_but_not_half_a_download(
    hub: Hub, full: Path
) -> None:
    run("hf://owner/name", "--make-room")
    assert len(list(full.glob("models--*/snapshots/*"))) == 4
    assert not list(full.rglob("*.incomplete"))


def test_nobody_who_did_not_ask_for_room_loses_a_copy(hub: Hub, full: Path) -> None:
    hub.files["more.json"] = b" " * 2_000
    with pytest.raises(InvalidInput, match="the download needs"):
        run("hf://owner/name")
    assert len(list(full.glob("models--*/snapshots/*"))) == 3
    assert list(full.rglob("*.incomplete"))
    with pytest.raises(InvalidInput, match="--make-room"):
        run("hf://owner/name", "--keep", "b" * 40)


def test_a_report_that_cannot_be_written_is_a_failure(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="--report"):
        run("hf://owner/name", "--report", str(tmp_path / "missing" / "report"))


class Asking(list[str]):
    """Files that the Hub serves; at the beginning of each file the progress is read from the port."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.url, self.told = f"http://127.0.0.1:{port}/metrics", list[tuple[int, int]]()

    def append(self, name: str) -> None:
        super().append(name)
        with urllib.request.urlopen(self.url) as answer:
            self.told.append(read_download(answer.read().decode()))


def test_bytes_are_told_at_a_port_while_they_come_and_not_after(hub: Hub, tmp_path: Path) -> None:
    port = free_port()
    hub.served = asking = Asking(port)
    run("hf://owner/name", "--report", str(tmp_path / "report"), "--metrics-port", str(port))
    in_all = sum(map(len, hub.files.values()))
    assert len(asking.told) == len(hub.files)
    assert {total for _, total in asking.told} == {in_all}
    assert all(done < in_all for done, _ in asking.told)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(asking.url)


def test_a_port_that_another_has_is_no_reason_not_to_download(hub: Hub, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run("hf://owner/name", "--report", str(tmp_path / "report"), "--metrics-port", str(port))
    assert f"no download metrics on port {port}" in said
    assert ModelReport.read((tmp_path / "report").read_text()).commit == COMMIT


def test_a_report_always_fits_a_termination_message() -> None:
    small = ModelReport("c", {"a": "ü"}, None)
    large = ModelReport("c", {"a": "ü" * MAX_BYTES}, WeightsSize(1, 1, 1))
    assert ModelReport.read(small.text()).config == {"a": "ü"}
    assert len(large.text().encode()) <= MAX_BYTES
    assert ModelReport.read(large.text()) == ModelReport("c", None, WeightsSize(1, 1, 1))


@pytest.mark.parametrize(
    "text",
    ["", "out of memory", "[]", "{}", '{"commit":1,"config":null,"weights":null}',
     '{"commit":"c","config":[],"weights":null}', '{"commit":"c","config":null,"weights":{"bytes":1}}',
     '{"commit":"c","config":null,"weights":{"bytes":-1,"elements":1,"of_matrices":1}}'],
)  # fmt: skip
def test_of_what_is_no_report_nothing_is_believed(text: str) -> None:
    assert ModelReport.read(text) == ModelReport()
