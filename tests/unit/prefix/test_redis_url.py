"""Which addresses of a Redis are taken, and what is said of the others, never their password."""

from pathlib import Path

import pytest

from mamba_prefix.errors import BadRedisUrl
from mamba_prefix.redis_client import make_client
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_url import check_url, url_from

GOOD = [
    "redis://h", "redis://h:6379/0", "rediss://user:pass@h:6380/3?ssl_ca_certs=/ca.pem",
    "redis://[::1]:6379/0", "unix:///run/redis.sock", "unix://:pass@/run/redis.sock?db=2",
    "redis+sentinel://a:26379,b,c:1/mymaster/2", "rediss+sentinel://u:p@a/mymaster",
    "redis+cluster://a:7000", "rediss+cluster://u:p@a:7000/0",
]  # fmt: skip


@pytest.mark.parametrize("url", GOOD)
def test_each_kind_of_address_makes_a_client(url: str) -> None:
    assert check_url(url) == url
    make_client(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://:secret@h", "must begin with one of redis://"),
        ("secret", "must begin with"),
        ("redis://:secret@", "names no host"),
        ("redis://:secret@h:99999", "is not an address"),
        ("redis://:secret@h:x", "is not an address"),
        ("redis://:secret@[::1", "is not an address"),
        ("redis://:secret@h/one", "a database that is not a number"),
        ("redis://:secret@h/1/2", "a database that is not a number"),
        ("redis://:secret@h /0", "a blank"),
        ("unix://", "names no socket"),
        ("redis+sentinel://:secret@h:1", "names no master"),
        ("redis+sentinel://:secret@a,,b/m", "names no host"),
        ("redis+sentinel://:secret@a/m/x", "a database that is not a number"),
        ("redis+cluster://:secret@h/3", "number 0"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_in_words(url: str, said: str) -> None:
    with pytest.raises(BadRedisUrl, match=said) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


def test_an_address_in_a_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:p@h:1/0\n")
    assert url_from(None, str(tmp_path / "url")) == "redis://:p@h:1/0"
    assert url_from(None, None) is None


@pytest.mark.parametrize("content", ["", "redis://a\nredis://b", "\udcff", None])
def test_a_file_without_one_address_is_refused_by_its_option(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "url").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadRedisUrl, match=r"^--redis-url-file: "):
        url_from(None, str(tmp_path / "url"))


def test_all_keys_of_a_scope_lie_on_one_node_of_a_cluster_and_scopes_apart() -> None:
    keys = RedisKeys("ns/{odd}name")
    every = [keys.stream, keys.engines, keys.heartbeat("e{1}"), keys.snapshot("e"), keys.wanted("e")]
    tags = {each[each.index("{") + 1 : each.index("}")] for each in every}
    assert tags == {"ns/(odd)name"}
    assert len(set(every)) == 5
    assert RedisKeys("ns/other").stream != keys.stream
