"""Key files: what counts as a key, and what happens when the file changes or breaks."""

import os
from pathlib import Path

import pytest

from mamba_server.api.api_keys import KeyFile
from mamba_server.api.errors import BadConfiguration, Unauthorized


def write(path: Path, text: str) -> None:
    """Write with a time stamp that differs from the last one."""
    path.write_text(text)
    later = path.stat().st_mtime_ns + 10_000_000 * len(text)
    os.utime(path, ns=(later, later))


def accepts(keys: KeyFile, header: str | None) -> bool:
    try:
        keys.check(header)
    except Unauthorized:
        return False
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    write(file, "# comment\n\n one \ntwo\n")
    return file


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Bearer one", True),
        ("bearer two", True),
        ("Bearer  two ", True),
        ("Bearer three", False),
        ("Bearer # comment", False),
        ("Bearer ", False),
        ("Basic one", False),
        ("one", False),
        ("", False),
        (None, False),
        ("Bearer on\u00e9", False),
    ],
)
def test_only_a_bearer_of_a_key_passes(path: Path, header: str | None, accepted: bool) -> None:
    assert accepts(KeyFile(str(path), "api_key_file"), header) is accepted


def test_a_rotated_key_counts_at_once(path: Path) -> None:
    keys = KeyFile(str(path), "api_key_file")
    write(path, "new\n")
    assert accepts(keys, "Bearer new")
    assert not accepts(keys, "Bearer one")


@pytest.mark.parametrize("broken", ["", "# nothing\n"])
def test_a_file_without_keys_does_not_open_the_door(path: Path, broken: str) -> None:
    keys = KeyFile(str(path), "api_key_file")
    write(path, broken)
    assert accepts(keys, "Bearer one")
    assert not accepts(keys, "Bearer anything")


def test_a_file_that_goes_away_keeps_the_keys(path: Path) -> None:
    keys = KeyFile(str(path), "api_key_file")
    path.unlink()
    assert accepts(keys, "Bearer one")


@pytest.mark.parametrize("text", [None, "", "# only\n"])
def test_at_the_start_a_missing_or_empty_file_is_an_error_that_names_it(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadConfiguration, match=f"api_key_file: {file}") as caught:
        KeyFile(str(file), "api_key_file")
    assert caught.value.exit_code == 2
