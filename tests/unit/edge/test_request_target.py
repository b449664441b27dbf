"""Targets of requests: taken apart as the parser does it, kept within bounds."""

import httptools
import pytest

from mamba_edge.connection.request_head import KEPT_BYTES, KEPT_TARGETS, targets


@pytest.mark.parametrize(
    ("target", "path", "raw_path", "query"),
    [
        (b"/v1/completions", "/v1/completions", b"/v1/completions", b""),
        (b"/v1/models/a%20b?x=%20&y", "/v1/models/a b", b"/v1/models/a%20b", b"x=%20&y"),
        (b"http://host:1/v1/models?q", "/v1/models", b"/v1/models", b"q"),
    ],
)
def test_a_target_is_the_same_the_first_time_and_later(
    target: bytes, path: str, raw_path: bytes, query: bytes
) -> None:
    targets.clear()
    assert targets[target] == targets[target] == (path, raw_path, query)


def test_what_has_no_path_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(httptools.HttpParserInvalidURLError):
            targets[b"no target"]


def test_clients_cannot_make_it_keep_more_than_its_bounds() -> None:
    targets.clear()
    long = b"/" + KEPT_BYTES * b"x"
    assert targets[long][1] == long
    assert long not in targets
    for number in range(3 * KEPT_TARGETS):
        assert targets[b"/%d" % number][0] == f"/{number}"
        assert len(targets) <= KEPT_TARGETS
