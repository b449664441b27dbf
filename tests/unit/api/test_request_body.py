"""Accepted and refused JSON bodies."""

import contextlib
import gc

import pytest

from mamba_edge.errors import InvalidRequest, UnsupportedMediaType
from mamba_server.api.requests.json_fields import parse_json_object
from mamba_server.api.requests.request_body import require_json


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a": NaN}', b'{"a": "\xff"}', b"\x00"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json_object(body)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "kind", [None, "application/json", "Application/JSON; charset=x", "application/a+json"]
)
def test_json_goes_under_several_names_and_under_none(kind: str | None) -> None:
    require_json(kind)


@pytest.mark.parametrize("kind", ["", "text/json", "text/plain", "multipart/form-data", "+json", "json"])
def test_what_is_declared_as_something_else_is_not_read(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        require_json(kind)


@pytest.mark.parametrize(("rest", "enabled"), [(b"}", True), (b"", True), (b"}", False)])
def test_no_garbage_is_looked_for_in_what_cannot_have_any(rest: bytes, enabled: bool) -> None:
    collections: list[str] = []

    def note(phase: str, _: object) -> None:
        collections.append(phase)

    (gc.enable if enabled else gc.disable)()
    gc.callbacks.append(note)
    try:
        with contextlib.suppress(InvalidRequest):
            parse_json_object(b'{"prompt":[' + b"[1]," * 20_000 + b"[1]]" + rest)
        during = len(collections)
        assert gc.isenabled() is enabled
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert during <= 2  # the one that was due meanwhile
