"""Key files: what counts as a key, and what happens when the file changes or breaks."""

import os
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection
from structlog.testing import capture_logs

from mamba_edge.api_keys import GRACE_SECONDS, KeyFile, KeyFileError
from mamba_edge.app.application import KeyGuard
from mamba_edge.errors import Unauthorized
from mamba_edge.exchange.request_body import BodyBudget, BodyShare
from mamba_edge.exchange.request_context import CONTEXT, RequestContext, context_of
from mamba_telemetry.request_trace import UNTRACED


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


@pytest.mark.parametrize("broken", ["", "# nothing\n", None])
def test_a_file_without_keys_lets_nobody_in_after_a_moment_and_one_with_keys_does_again(
    path: Path, broken: str | None
) -> None:
    now = 100.0
    keys = KeyFile(str(path), "api_key_file", clock=lambda: now)
    if broken is None:
        path.unlink()
    else:
        write(path, broken)
    assert accepts(keys, "Bearer one")
    assert not accepts(keys, "Bearer anything")
    now += GRACE_SECONDS - 0.01
    assert accepts(keys, "Bearer one")
    now += 0.01
    for header in ("Bearer one", "Bearer two", "Bearer ", "Bearer anything"):
        assert not accepts(keys, header)
    assert keys.first == b""
    write(path, "one\n")
    assert accepts(keys, "Bearer one")
    assert not accepts(keys, "Bearer two")


def test_a_rotation_that_is_seen_half_done_refuses_nobody(path: Path) -> None:
    now = 100.0
    keys = KeyFile(str(path), "api_key_file", clock=lambda: now)
    for _ in range(5):
        path.write_text("")
        assert accepts(keys, "Bearer one")
        now += GRACE_SECONDS * 0.9
        write(path, "one\n")
        assert accepts(keys, "Bearer one")
        now += GRACE_SECONDS


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_was_emptied_long_before_anybody_asks_lets_nobody_in(path: Path, gone: bool) -> None:
    keys = KeyFile(str(path), "api_key_file", clock=lambda: 100.0)
    if gone:
        path.unlink()
    else:
        path.write_text("")
    os.utime(path.parent if gone else path, (50.0, 50.0))
    assert not accepts(keys, "Bearer one")


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
        context = RequestContext(
            "r", 0.0, dict(headers), UNTRACED, BodyShare(BodyBudget()), {}, [], direct=None, begin=None
        )
        return HTTPConnection({"type": "http", "headers": list(headers), CONTEXT: context})

    await KeyGuard(None, "")(request())
    guard = KeyGuard(KeyFile(path, "api_key_file"), "")
    with pytest.raises(Unauthorized):
        await guard(request())
    passed = request((b"authorization", b"Bearer one"))
    await guard(passed)
    assert context_of(passed.scope).key_name == "key-1"
    write(path, "two\n")
    await guard(passed)
    with pytest.raises(Unauthorized):
        await guard(request((b"authorization", b"Bearer one")))
