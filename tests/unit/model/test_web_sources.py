"""Models on web servers: what is fetched, how a broken download goes on, what is refused in which words."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from file_server import FileServer, file_server
from mamba_cli.local.model_facts import facts_of_model
from mamba_server.model.checkpoint.errors import DownloadFailed, SourceError, SourceNotFound
from mamba_server.model.checkpoint.source import resolve, resolve_adapter
from mamba_server.model.remote import http_client, ranged_download

WEIGHTS = bytes(range(256)) * 1200
PIECE = 100_000
CONFIG = (Path(__file__).parents[2] / "golden" / "configs" / "granite-4.0-h-350m.json").read_bytes()
MODEL = {"config.json": CONFIG, "tokenizer.json": b"[]", "model.safetensors": WEIGHTS}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(ranged_download, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(ranged_download, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(http_client, "REQUEST_PAUSE_SECONDS", 0.0)
    return tmp_path / "hub"


@pytest.fixture
def server(cache: Path) -> Iterator[FileServer]:
    with file_server({f"nano/{name}": data for name, data in MODEL.items()}) as served:
        yield served


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def packed(files: dict[str, bytes], mode: str = "w") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_directory_is_fetched_in_pieces_into_the_cache_and_once(server: FileServer, cache: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    directory = resolve(f"{server.url}/nano/", lambda *call: calls.append(call))
    assert content(directory) == MODEL
    assert directory.is_relative_to(cache)
    pieces = [part for part in server.asked if part[0].endswith("model.safetensors")]
    assert len(pieces) == -(-len(WEIGHTS) // PIECE)
    total = sum(map(len, MODEL.values()))
    assert (calls[0], calls[-1]) == (("download", 0, total), ("download", total, total))

    server.asked.clear()
    assert resolve(f"{server.url}/nano") == directory
    assert server.asked == []


def test_a_list_of_checksums_names_the_files_and_finds_what_arrives_damaged(server: FileServer) -> None:
    sharded = {"config.json": b"{}", "sub/w.safetensors": WEIGHTS, "notes.pdf": b"x"}
    server.files = {f"a/{name}": data for name, data in sharded.items()} | {"a/SHA256SUMS": sums(sharded)}
    found = content(resolve(f"{server.url}/a/"))
    assert found == {"config.json": b"{}", "sub/w.safetensors": WEIGHTS}

    server.files["a/SHA256SUMS"] = sums({**sharded, "config.json": b"{ }"})
    with pytest.raises(DownloadFailed, match=r"config\.json was downloaded twice, and its sha256 is not"):
        resolve(f"{server.url}/a/")
    # The other files are kept, and the mended one is fetched alone.
    server.files |= {"a/config.json": b"{ }"}
    server.asked.clear()
    assert content(resolve(f"{server.url}/a/"))["config.json"] == b"{ }"


def test_shards_are_those_of_the_index(server: FileServer) -> None:
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    server.files = {
        "m/config.json": b"{}", "m/model.safetensors.index.json": json.dumps(index).encode(),
        "m/model-1.safetensors": b"1", "m/model-2.safetensors": b"2", "m/model.safetensors": b"whole",
    }  # fmt: skip
    names = set(content(resolve(f"{server.url}/m")))
    assert names == {
        "config.json",
        "model.safetensors.index.json",
        "model-1.safetensors",
        "model-2.safetensors",
    }
    del server.files["m/model-2.safetensors"]
    with pytest.raises(SourceNotFound, match=r"model-2\.safetensors answers 404"):
        resolve(f"{server.url}/m")


def test_a_piece_that_breaks_off_goes_on_where_it_stopped(server: FileServer) -> None:
    breaks = [40_000, 50_000]
    server.before = lambda path, start: breaks.pop() if start >= PIECE and breaks else None
    assert content(resolve(f"{server.url}/nano")) == MODEL
    starts = {start % PIECE for _, start, _ in server.asked}
    assert starts > {0}, "a part was continued"


def test_a_download_that_failed_is_resumed_by_the_next(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged_download, "CONNECTIONS", 1)
    uri = f"{server.url}/nano"
    server.before = lambda path, start: 0 if start >= 2 * PIECE else None
    with pytest.raises(DownloadFailed, match="start again to resume"):
        resolve(uri)
    server.before, server.asked = lambda _path, _start: None, []
    said: list[str] = []
    assert content(resolve(uri, say=said.append)) == MODEL
    assert any("resuming a download" in line for line in said)
    assert {start for path, start, _ in server.asked if "safetensors" in path} == {2 * PIECE, 3 * PIECE}


def test_files_that_change_in_between_are_no_model(server: FileServer) -> None:
    def change(path: str, start: int) -> int | None:
        if start == 0 and "safetensors" in path:
            server.files["nano/model.safetensors"] = WEIGHTS[::-1]
            return 10
        return None

    server.before = change
    with pytest.raises(DownloadFailed, match="was replaced during the download"):
        resolve(f"{server.url}/nano")
    server.before = lambda _path, _start: None
    assert content(resolve(f"{server.url}/nano"))["model.safetensors"] == WEIGHTS[::-1]


def test_a_server_that_sends_whole_files_only_is_read_in_one_go(server: FileServer) -> None:
    server.ranges = False
    assert content(resolve(f"{server.url}/nano")) == MODEL
    assert len([part for part in server.asked if "safetensors" in part[0]]) == 1


def test_the_copy_of_a_revision_needs_no_server_and_another_one_is_refused(server: FileServer) -> None:
    uri = f"{server.url}/nano"
    first = resolve(uri)
    server.status = 503
    assert resolve(f"{uri}?revision={first.name}") == first
    assert resolve(uri) == first, "the last copy serves while the source is away"
    server.status = 0
    with pytest.raises(SourceNotFound, match=rf"another revision now \({first.name}\)"):
        resolve(f"{uri}?revision={'0' * 40}")


@pytest.mark.parametrize(("name", "mode"), [("m.tar", "w"), ("m.tar.gz", "w:gz"), ("m.tgz", "w:gz")])
def test_an_archive_is_a_model_with_or_without_a_folder_in_it(
    server: FileServer, name: str, mode: str
) -> None:
    hostile = {"../out.json": b"x", "/abs.json": b"x", "nano/evil.py": b"x"}
    data = packed({**hostile, **{f"nano/{file}": data for file, data in MODEL.items()}}, mode)
    server.files = {name: data}
    directory = resolve(f"{server.url}/{name}?sha256={hashlib.sha256(data).hexdigest()}")
    assert content(directory) == MODEL
    with pytest.raises(DownloadFailed, match="its sha256 is not 0000"):
        resolve(f"{server.url}/{name}?sha256={'0' * 64}")


def test_an_archive_without_a_model_or_that_is_none_is_named(server: FileServer) -> None:
    server.files = {"a.tar": packed({"readme.txt": b"x"}), "b.tar.gz": b"no archive"}
    with pytest.raises(SourceNotFound, match=r"no config\.json in the archive"):
        resolve(f"{server.url}/a.tar")
    with pytest.raises(DownloadFailed, match="no readable archive"):
        resolve(f"{server.url}/b.tar.gz")


def test_a_plan_reads_the_configuration_and_no_weights(server: FileServer) -> None:
    server.files["nano.tar"] = packed({"weights.safetensors": bytes(3_000_000), "nano/config.json": CONFIG})
    facts = facts_of_model(f"{server.url}/nano", None, Path("f.yaml"))
    assert facts.config.family == "granitemoehybrid"
    assert facts.size is not None
    assert facts.size.bytes == len(WEIGHTS)
    facts = facts_of_model(f"{server.url}/nano.tar", None, Path("f.yaml"))
    assert facts.config.family == "granitemoehybrid"
    assert sum(end - start for path, start, end in server.asked if path == "nano.tar") < 300_000
    assert not any("model.safetensors" in path for path, _, _ in server.asked)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, DownloadFailed, "access is refused: .*MAMBASERVE_MODEL_TOKEN"),
        (403, DownloadFailed, "access is refused: .*MAMBASERVE_MODEL_TOKEN"),
        (404, SourceNotFound, "it is not there: check the URI"),
        (500, DownloadFailed, "overloaded or broken"),
        (400, SourceNotFound, "answers 400"),
    ],
)
def test_a_refusal_says_what_to_do(
    server: FileServer, status: int, error: type[SourceError], words: str
) -> None:
    server.status = status
    with pytest.raises(error, match=rf"^{server.url}/nano: .*{words}"):
        resolve(f"{server.url}/nano")


def test_a_token_is_sent_where_one_is_set(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "open"
    monkeypatch.setenv("MAMBASERVE_MODEL_TOKEN", "open")
    assert content(resolve(f"{server.url}/nano")) == MODEL


def test_a_server_that_is_away_is_a_download_to_try_again(cache: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"cannot be reached .* check the network"):
        resolve("http://127.0.0.1:9/nano")


ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": WEIGHTS}


def test_an_adapter_is_fetched_from_a_directory_or_an_archive(server: FileServer, cache: Path) -> None:
    server.files |= {f"sql/{name}": data for name, data in ADAPTER.items()}
    server.files["packed.tar"] = packed({f"out/{name}": data for name, data in ADAPTER.items()})
    for path in ("sql/", "packed.tar"):
        assert content(resolve_adapter(f"{server.url}/{path}")) == ADAPTER
    with pytest.raises(SourceNotFound, match=r"there is no config\.json"):
        resolve(f"{server.url}/sql/")
    with pytest.raises(SourceNotFound, match=r"there is no adapter_config\.json"):
        resolve_adapter(f"{server.url}/nano/")
