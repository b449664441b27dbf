"""The errors of the engine's API: drawn in the tree, and what the engine says about them."""

import json

import pytest

from mamba_edge.errors import ApiError
from mamba_server.api.requests import errors
from mamba_server.api.requests.errors import EngineRefused
from mamba_server.wire import RequestRejected

OWN = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, ApiError) and cls.__module__ == errors.__name__
]


@pytest.mark.parametrize("cls", OWN, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_in_the_tree(cls: type[ApiError]) -> None:
    assert errors.__doc__ is not None
    [line] = [line for line in errors.__doc__.splitlines() if cls.__name__ in line.split()]
    if "status" in vars(cls):
        assert str(cls.status) in line
        assert ("Retry-After" in line) == (cls.retry_after is not None)
    if "code" in vars(cls):
        assert str(cls.code) in line


@pytest.mark.parametrize(
    ("status", "given", "header"), [(429, None, "1"), (503, None, "1"), (503, 9.0, "9"), (400, None, None)]
)
def test_the_engine_s_refusal_keeps_its_words_and_always_says_when_to_come_back(
    status: int, given: float | None, header: str | None
) -> None:
    error = EngineRefused(RequestRejected("r", status, "kind", "code", "words", given))
    assert (error.status, error.headers().get("retry-after")) == (status, header)
    assert json.loads(error.envelope())["error"] == {
        "message": "words", "type": "kind", "param": None, "code": "code",
    }  # fmt: skip
