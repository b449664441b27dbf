"""`mambaserve pull` and `list`: what is fetched, what is refused before, and what the cache holds."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from file_server import FileServer, file_server
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.main import application
from mamba_server.model.checkpoint.source import resolve
from mamba_server.model.remote import http_client, ranged_download
from mamba_settings.byte_size import binary_size
from model_configs import unserved_config
from small_hub import COMMIT, Hub, small_hub

SHIPPED = Path(__file__).parents[3] / "server/mamba_server/builtin/tiny-recall"
PIECE = 4096
SIZE = PIECE * 3
"""Bytes of the weights: three pieces of a download."""


def weights() -> bytes:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"backbone.norm_f.weight": entry}).encode()
    header += b" " * (SIZE - 12 - len(header))
    return len(header).to_bytes(8, "little") + header + bytes(4)


FILES = {"config.json": (SHIPPED / "config.json").read_bytes(), "model.safetensors": weights()}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    with small_hub(monkeypatch, str(cache), dict(FILES)) as served:
        yield served


@pytest.fixture
def server(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Yield a web server with the model in the directory `nano`."""
    monkeypatch.setattr(ranged_download, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(ranged_download, "CONNECTIONS", 1)
    monkeypatch.setattr(ranged_download, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(http_client, "REQUEST_PAUSE_SECONDS", 0.0)
    with file_server({f"nano/{name}": data for name, data in FILES.items()}) as served:
        yield served


def run(*arguments: str) -> str:
    result = CliRunner().invoke(application(arguments[0]), arguments, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def listed() -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = json.loads(run("list", "-o", "json"))
    return documents


def test_a_pulled_model_is_listed_and_served_from_the_same_cache(hub: Hub, cache: Path) -> None:
    said = run("pull", "owner/name")
    assert "owner/name: " in said
    assert f"nemotron_h in float32, commit {COMMIT}" in said
    assert said.endswith("talk to it with: mambaserve run owner/name\n")
    [model] = listed()
    size = sum(map(len, FILES.values()))
    assert model == {
        "uri": "hf://owner/name", "commit": COMMIT, "size": size, "family": "nemotron_h",
        "directory": str(cache / "models--owner--name/snapshots" / COMMIT), "precision": "float32",
        "is_served": True, "state": "complete", "used": model["used"],
    }  # fmt: skip
    fetched = len(hub.served)
    assert str(resolve("hf://owner/name")) == model["directory"]
    document = json.loads(
        CliRunner().invoke(application("pull"), ["pull", "hf://owner/name", "-o", "json"]).stdout
    )
    assert (document["directory"], document["state"]) == (model["directory"], "complete")
    assert len(hub.served) == fetched
    [line] = [line for line in run("list").splitlines() if "owner/name" in line]
    assert line.split()[:4] == ["owner/name", binary_size(size), "nemotron_h", "float32"]
    assert line.rstrip().endswith("complete")


def test_each_use_is_noted_and_the_last_one_comes_first(server: FileServer, cache: Path) -> None:
    run("pull", f"{server.url}/nano/")
    run("pull", "owner/name")
    # As if years had passed since both downloads.
    for record in cache.glob("models--*/mambaserve-use/*.json"):
        os.utime(record, (1e9, 1e9))
    assert {model["used"] for model in listed()} == {"2001-09-09T01:46:40Z"}
    resolve("hf://owner/name")
    assert [model["uri"] for model in listed()] == ["hf://owner/name", f"{server.url}/nano/"]


def test_a_pull_that_broke_off_is_listed_and_continued(server: FileServer) -> None:
    uri = f"{server.url}/nano/"
    server.before = lambda _path, start: 0 if start >= PIECE else None
    with pytest.raises(RunFailed, match="start again to resume"):
        run("pull", uri)
    [model] = listed()
    assert (model["uri"], model["state"]) == (uri, "incomplete")
    assert 0 < model["size"] < sum(map(len, FILES.values()))
    assert "incomplete: pull continues" in run("list")

    server.wait_for_end()
    server.before, server.asked = lambda _path, _start: None, []
    run("pull", uri)
    [model] = listed()
    assert (model["state"], model["size"]) == ("complete", sum(map(len, FILES.values())))
    again = [part for part in server.asked if part[0].endswith(".safetensors")]
    assert [start for _, start, _ in again] == [PIECE, 2 * PIECE]


@pytest.mark.parametrize(
    ("config", "message"),
    [({"model_type": "gpt2"}, "is not supported"), (unserved_config(), "activation gelu")],
)
def test_a_model_that_cannot_be_served_is_refused_before_its_weights(
    hub: Hub, config: dict[str, Any], message: str
) -> None:
    hub.files["config.json"] = json.dumps(config).encode()
    with pytest.raises(InvalidInput, match=message):
        run("pull", "owner/name")
    assert "model.safetensors" not in hub.served
    # The plan's look has left a configuration.
    [model] = listed()
    assert (model["state"], model["is_served"]) == ("no weights", False)
    assert "configuration only" in run("list")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("builtin://tiny-recall", "ships with mambaserve: mambaserve run builtin://tiny-recall"),
        (str(SHIPPED), f"is a directory of this machine: mambaserve run {SHIPPED}"),
        ("nano", "write OWNER/NAME as on the Hub"),
        ("ftp://host/nano", "no model to download"),
        ("hf://only-a-name", "hf://OWNER/NAME"),
        ("s3://bucket?x=1", "is no model URI"),
    ],
)
def test_what_is_no_model_to_fetch_is_refused_with_what_to_write(hub: Hub, model: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        run("pull", model)
    assert message in str(refused.value)
    assert hub.served == []


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((404, "RepoNotFound"), InvalidInput, "no model owner/name"),
        ((401, "GatedRepo"), RunFailed, "set HF_TOKEN"),
        ((500, ""), RunFailed, "download failed|cannot be reached"),
    ],
)
def test_a_hub_that_refuses_is_told_apart(
    hub: Hub, answer: tuple[int, str], error: type[Exception], message: str
) -> None:
    hub.refuse = answer
    with pytest.raises(error, match=message):
        run("pull", "owner/name")


def test_models_of_other_programs_and_damaged_ones_are_listed_as_they_are(hub: Hub, cache: Path) -> None:
    assert "no model is in" in CliRunner().invoke(application("list"), ["list"]).stderr
    broken = cache / "models--some--model-[red]/snapshots" / ("a" * 40)
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    (broken / "model.safetensors").write_bytes(b"cut off")
    begun = cache / "models--other--begun"
    (begun / "refs").mkdir(parents=True)
    (begun / "refs/main").write_text("b" * 40)
    (begun / "blobs").mkdir()
    (begun / "blobs/x.1.incomplete").write_bytes(bytes(5000))
    models = {model["uri"]: model for model in listed()}
    assert {uri: (model["state"], model["used"]) for uri, model in models.items()} == {
        "hf://some/model-[red]": ("incomplete", None),
        "hf://other/begun": ("incomplete", None),
    }
    assert models["hf://other/begun"]["size"] == 5000
    assert "some/model-[red]" in run("list")
