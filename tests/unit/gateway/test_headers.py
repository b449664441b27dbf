"""Headers and identifiers."""

import tracemalloc

import pytest

from mamba_gateway.headers import KEPT_NAMES, to_client, to_engine


def test_to_the_engine_go_end_to_end_headers_and_the_identifiers() -> None:
    headers = [
        (b"Host", b"gateway"),
        (b"Authorization", b"Bearer k"),
        (b"Connection", b"close, X-Private"),
        (b"X-Private", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Content-Length", b"3"),
        (b"Expect", b"100-continue"),
        (b"X-Request-Id", b"theirs"),
        (b"X-Many", b"1"),
        (b"X-Many", b"2"),
        (b"X-Mambaserve-Pin", b"10m"),
    ]
    assert to_engine(headers, "id") == [
        (b"x-many", b"1"),
        (b"x-many", b"2"),
        (b"x-mambaserve-pin", b"10m"),
        (b"x-request-id", b"id"),
    ]


def test_to_the_client_go_end_to_end_headers() -> None:
    headers = [
        (b"Content-Type", b"a"), (b"Content-Length", b"3"), (b"Date", b"x"), (b"Server", b"y"),
        (b"Keep-Alive", b"z"), (b"X-Request-Id", b"engine's"), (b"Retry-After", b"3"),
    ]  # fmt: skip
    kept = [(b"content-type", b"a"), (b"content-length", b"3"), (b"retry-after", b"3")]
    assert to_client(headers) == kept


@pytest.mark.parametrize("value", ["é".encode(), b"\xe9"])
def test_headers_beyond_ascii_pass_byte_for_byte(value: bytes) -> None:
    assert to_engine([(b"X-Name", value)], "i")[0] == (b"x-name", value)


def test_long_names_that_clients_make_up_are_judged_and_not_kept() -> None:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(200):
        name = b"x-%06d-" % number + b"a" * 20_000
        # Also where a word of a credential stands behind what is usually read.
        assert to_engine([(name, b"1"), (name + b"-token", b"2")], "i") == [
            (name, b"1"),
            (b"x-request-id", b"i"),
        ]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1_000_000


def test_more_names_than_are_kept_are_judged_alike() -> None:
    for number in range(2 * KEPT_NAMES):
        pairs = [(b"x-%d" % number, b"1"), (b"x-%d-token" % number, b"2"), (b"te", b"3"), (b"accept", b"4")]
        assert to_engine(pairs, "i") == [pairs[0], pairs[3], (b"x-request-id", b"i")]
