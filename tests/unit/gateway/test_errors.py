"""The error tree: each error says status, type and code, and becomes the envelope."""

import json

import pytest

from mamba_edge.errors import ApiError
from mamba_gateway import errors

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_in_the_tree_with_its_status_and_code(cls: type[ApiError]) -> None:
    body = json.loads(cls("why", param="p").envelope())["error"]
    assert body == {"message": "why", "type": cls.kind, "param": "p", "code": cls.code}
    assert errors.__doc__ is not None
    [line] = [line for line in errors.__doc__.splitlines() if cls.__name__ in line.split()]
    assert f"{cls.status} {cls.code}" in line


def test_what_has_no_engine_now_may_be_sent_again_and_a_drain_wants_no_idle_clients() -> None:
    assert int(errors.NoEndpoint("x").headers()["retry-after"]) >= 1
    assert errors.GatewayDraining("x").headers() == {"connection": "close", "retry-after": "1"}
    assert "connection" not in errors.NoEndpoint("x").headers()
