"""The error tree: each error says status, type and code, and becomes the envelope."""

import json

import pytest

from mamba_gateway import errors
from mamba_gateway.proxy_endpoint import error_headers

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.GatewayError)]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_in_the_tree_with_its_status_and_has_the_envelope_s_fields(cls) -> None:
    body = json.loads(cls("why", param="p").envelope())["error"]
    assert body == {"message": "why", "type": cls.kind, "param": "p", "code": cls.code}
    assert errors.__doc__ is not None
    [line] = [line for line in errors.__doc__.splitlines() if cls.__name__ in line.split()]
    assert str(cls.status) in line


def test_retry_after_is_at_least_one_whole_second() -> None:
    headers = dict(error_headers(errors.Overloaded("x", retry_after=0.2)))
    assert headers[b"retry-after"] == b"1"
    assert b"connection" not in headers


def test_a_body_that_is_not_read_to_its_end_closes_the_connection() -> None:
    for error in (errors.BodyTooLarge("x"), errors.BodyTooSlow("x"), errors.Draining("x")):
        assert dict(error_headers(error))[b"connection"] == b"close"
