"""Key files: what counts as a key, and what happens when the file changes or breaks."""

import os
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection
from structlog.testing import capture_logs

from mamba_edge.api_keys import KeyFile, KeyFileError, KeyGuard
from mamba_edge.errors import Unauthorized


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
    with pytest.raises(KeyFileError, match=f"api_key_file: {file}"):
        KeyFile(str(file), "api_key_file")


def test_a_file_that_is_replaced_within_one_tick_of_the_clock_is_read_again(path: Path) -> None:
    keys = KeyFile(path, "api_key_file")
    before = path.stat()
    fresh = path.with_name("fresh")
    fresh.write_text("three\n")
    os.utime(fresh, ns=(before.st_mtime_ns, before.st_mtime_ns))
    os.replace(fresh, path)
    assert accepts(keys, "Bearer three")
    assert not accepts(keys, "Bearer one")
    assert keys.first == b"three"


def test_a_key_beyond_ascii_is_compared_as_the_bytes_that_came(path: Path) -> None:
    write(path, "schl\u00fcssel\n")
    keys = KeyFile(path, "api_key_file")
    sent = "Bearer schl\u00fcssel".encode()
    keys.check(sent)
    keys.check(sent.decode("latin-1"))  # as a framework hands headers out
    assert not accepts(keys, "Bearer schlussel")


def test_a_broken_file_is_told_once_and_again_when_it_breaks_anew(path: Path) -> None:
    keys = KeyFile(path, "api_key_file")
    with capture_logs() as lines:
        path.unlink()
        for _ in range(3):
            assert accepts(keys, "Bearer one")
        assert [line["event"] for line in lines] == ["key_file_unreadable"]
        assert "one" not in lines[0]["reason"]
        write(path, "one\n")
        assert accepts(keys, "Bearer one")
        path.unlink()
        assert accepts(keys, "Bearer one")
        assert len(lines) == 2


async def test_a_guard_without_a_file_lets_everybody_pass_and_one_with_a_file_asks_once(path: Path) -> None:
    def request(*headers: tuple[bytes, bytes]) -> HTTPConnection:
        return HTTPConnection({"type": "http", "headers": list(headers)})

    await KeyGuard(None, "")(request())
    guard = KeyGuard(KeyFile(path, "api_key_file"), "")
    with pytest.raises(Unauthorized):
        await guard(request())
    passed = request((b"authorization", b"Bearer one"))
    await guard(passed)
    write(path, "two\n")
    await guard(passed)
    with pytest.raises(Unauthorized):
        await guard(request((b"authorization", b"Bearer one")))
