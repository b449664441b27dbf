"""API keys from a file."""

import os

import pytest

from mamba_gateway.auth import KeyFile
from mamba_gateway.errors import InvalidApiKey


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {key}".encode())]


def test_every_line_is_a_key_but_for_comments_and_blanks(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team a\n one \n\ntwo\n")
    keys = KeyFile(path)
    keys.check(bearer("one"))
    keys.check([(b"Authorization", b"bearer two")])
    assert keys.first == b"one"


@pytest.mark.parametrize(
    "headers", [[], bearer(""), bearer("# team a"), bearer("on"), [(b"authorization", b"Basic one")]]
)
def test_anything_else_is_refused(headers, tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team a\none\n")
    with pytest.raises(InvalidApiKey):
        KeyFile(path).check(headers)


def test_a_file_without_a_key_is_refused_at_the_start(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nothing\n\n")
    with pytest.raises(ValueError, match="one key on each line"):
        KeyFile(path)
    with pytest.raises(FileNotFoundError):
        KeyFile(tmp_path / "absent")


def test_a_rotated_file_is_read_again_and_a_lost_one_keeps_the_keys(tmp_path) -> None:
    path, fresh = tmp_path / "keys", tmp_path / "new"
    path.write_text("one\n")
    keys = KeyFile(path)
    fresh.write_text("two\n")
    os.replace(fresh, path)
    keys.check(bearer("two"))
    path.write_text("")
    keys.check(bearer("two"))
    path.unlink()
    keys.check(bearer("two"))
