"""Copies of a Hub's model that processes share: one fills it, damage is found, a whole one is quick."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from mamba_server.model.checkpoint import hub_copy
from mamba_server.model.checkpoint.errors import DownloadFailed
from mamba_server.model.checkpoint.hub_copy import CHECKED, sound_copy
from mamba_server.model.checkpoint.source import silent
from mamba_server.model.remote.folder_lock import LOCK
from small_hub import COMMIT, Hub, point_at, small_hub

URI = f"hf://owner/name@{COMMIT}"
WEIGHTS = bytes(range(256)) * 1000


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    with small_hub(monkeypatch, str(cache), files) as found:
        yield found


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files whose contents were compared."""
    seen: list[Path] = []
    whole = hub_copy._checksum

    def read(blob: Path) -> str:
        seen.append(blob)
        return whole(blob)

    monkeypatch.setattr(hub_copy, "_checksum", read)
    return seen


def copy(cache: Path, said: list[str] | None = None) -> Path:
    return sound_copy(URI, cache, silent, (said if said is not None else []).append)


def test_a_copy_is_compared_once_and_is_ready_at_once_from_then_on(
    hub: Hub, cache: Path, compared: list[Path]
) -> None:
    first = copy(cache)
    assert (first / "model.safetensors").read_bytes() == WEIGHTS
    assert len(compared) == 1

    said: list[str] = []
    assert copy(cache, said) == first
    assert (len(compared), len(hub.served), said) == (1, 2, [])


def test_a_whole_copy_needs_no_hub(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = copy(cache)
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert copy(cache) == first


@pytest.mark.parametrize("damage", [WEIGHTS[:-1], WEIGHTS[:-1] + b"x", b""], ids=["cut", "flipped", "empty"])
def test_what_is_damaged_is_found_and_downloaded_again(hub: Hub, cache: Path, damage: bytes) -> None:
    first = copy(cache)
    (first / "model.safetensors").resolve().write_bytes(damage)
    said: list[str] = []

    again = copy(cache, said)

    assert (again / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.served.count("model.safetensors") == 2
    assert any("model.safetensors is damaged" in line for line in said)


def test_what_arrives_damaged_each_time_is_no_model(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("small_hub.digest", lambda name, _: "0" * 64 if "safetensors" in name else "1" * 40)
    with pytest.raises(DownloadFailed, match=r"model\.safetensors was downloaded twice") as caught:
        copy(cache)
    assert caught.value.exit_code == 1
    assert hub.served.count("model.safetensors") == 2


@pytest.mark.parametrize("note", ["", "[]", "{", '{"a": 1}'])
def test_a_note_that_says_nothing_costs_a_comparison(
    hub: Hub, cache: Path, compared: list[Path], note: str
) -> None:
    copy(cache)
    [written] = cache.rglob(CHECKED)
    written.write_text(note)
    copy(cache)
    copy(cache)
    assert len(compared) == 2


def test_whoever_comes_second_waits_and_finds_it_done(hub: Hub, cache: Path) -> None:
    cache.mkdir(parents=True)
    holder = os.open(cache / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    waits, found = Event(), list[Path]()

    def second() -> None:
        found.append(sound_copy(URI, cache, silent, lambda said: waits.set() if "waiting" in said else None))

    other = Thread(target=second)
    other.start()
    assert waits.wait(60)
    assert (found, hub.served) == ([], [])
    os.close(holder)
    other.join(60)
    assert (found[0] / "model.safetensors").read_bytes() == WEIGHTS


def test_a_directory_that_cannot_be_written_is_named(hub: Hub, cache: Path) -> None:
    cache.parent.write_text("a file")
    with pytest.raises(DownloadFailed, match="cannot be written: Not a directory"):
        copy(cache)
