"""Headers and identifiers."""

import pytest

from mamba_gateway.headers import to_client, to_engine


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
    ]
    assert to_engine(headers, "id") == [
        (b"x-many", b"1"),
        (b"x-many", b"2"),
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
