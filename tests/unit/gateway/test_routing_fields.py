"""Decoding of a body's routing fields alone; errors in them are reported."""

import pytest

from mamba_edge.errors import InvalidRequest
from mamba_gateway.body_fields import routing_fields


def test_only_model_and_stream_are_read() -> None:
    found = routing_fields(b'{"prompt": [1,2], "stream": true, "model": "m", "tools": [{"a": {"model": 3}}]}')
    assert (found.model, found.stream) == ("m", True)
    assert (routing_fields(b"{}").model, routing_fields(b'{"model": null}').stream) == (None, None)


def test_an_empty_name_asks_for_no_model_as_it_does_at_an_engine() -> None:
    found = routing_fields(b'{"model": "", "stream": true, "max_tokens": 7}')
    assert (found.model, found.stream, found.answer_tokens) == (None, True, 7)


@pytest.mark.parametrize(
    ("raw", "param", "code", "mentioned"),
    [
        (b'{"model": ["m"]}', "model", "invalid_type", "model: must be a valid string"),
        (b'{"stream": 1}', "stream", "invalid_type", "stream: must be a valid boolean"),
        (b"3", None, "invalid_json", "must be a JSON object"),
        (b'{"model": "m"', None, "invalid_json", "not valid JSON"),
        (b"\xff\xfe", None, "invalid_json", "not valid JSON"),
        (b'{"model": "\xff"}', None, "invalid_json", "not valid"),
        (b"[" * 100_000, None, "invalid_json", "must be a JSON object"),
        (b'{"x": ' + b"[" * 100_000, None, "invalid_json", "not valid JSON"),
    ],
)
def test_a_wrong_body_is_refused_in_words(raw: bytes, param: str | None, code: str, mentioned: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        routing_fields(raw)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert mentioned in refused.value.message
