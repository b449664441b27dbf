"""Headers and identifiers."""

from random import Random

import pytest

from mamba_gateway.headers import find, request_id, to_client, to_engine, traceparent

TRACE = b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-00"


def test_find_ignores_case_and_takes_the_first() -> None:
    headers = [(b"X-A", b"1"), (b"x-a", b"2")]
    assert find(headers, b"x-a") == b"1"
    assert find(headers, b"x-b") is None


@pytest.mark.parametrize("given", [b"abc", b"a-b_c.d:e/f+g=h@i", b"x" * 128])
def test_a_plain_request_id_is_kept(given) -> None:
    assert request_id([(b"x-request-id", given)], Random(0)) == given


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"a\nb", "é".encode(), b'"'])
def test_a_request_id_that_could_spoil_a_log_or_header_is_replaced(given) -> None:
    made = request_id([(b"x-request-id", given)], Random(0))
    assert made.startswith(b"req-")
    assert len(made) == 36


def test_a_valid_traceparent_is_kept() -> None:
    assert traceparent([(b"traceparent", TRACE)], Random(0)) == TRACE


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"00-" + b"0" * 32 + b"-" + b"2" * 16 + b"-00",
        b"ff" + TRACE[2:],
        TRACE.replace(b"1", b"G"),
        TRACE[:-1],
    ],
)
def test_an_invalid_traceparent_starts_a_new_trace(given) -> None:
    made = traceparent([(b"traceparent", given)], Random(0))
    assert traceparent([(b"traceparent", made)], Random(1)) == made
    assert made != given
    assert made.endswith(b"-01")


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
    assert to_engine(headers, b"id", TRACE) == [
        ("authorization", "Bearer k"),
        ("x-many", "1"),
        ("x-many", "2"),
        ("x-request-id", "id"),
        ("traceparent", TRACE.decode()),
    ]


def test_to_the_client_go_end_to_end_headers() -> None:
    headers = [
        (b"Content-Type", b"a"), (b"Content-Length", b"3"), (b"Date", b"x"), (b"Server", b"y"),
        (b"Keep-Alive", b"z"), (b"X-Request-Id", b"engine's"), (b"Retry-After", b"3"),
    ]  # fmt: skip
    kept = [(b"content-type", b"a"), (b"content-length", b"3"), (b"retry-after", b"3")]
    assert to_client(headers) == kept


@pytest.mark.parametrize("value", ["é".encode(), b"\xe9"])
def test_headers_beyond_ascii_are_text_in_whichever_encoding_they_came(value: bytes) -> None:
    assert to_engine([(b"X-Name", value)], b"i", TRACE)[0] == ("x-name", "é")
