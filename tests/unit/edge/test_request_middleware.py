"""The outermost application: identifiers, the envelope for whatever was raised, one count for each answer."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs

from asgi import Asked, ask
from mamba_edge import errors
from mamba_edge.errors import ApiError, InvalidRequest
from mamba_edge.exchange.asgi_responses import send_json
from mamba_edge.exchange.request_body import ClientGone
from mamba_edge.exchange.request_context import context_of
from mamba_edge.exchange.request_middleware import RequestMiddleware, request_id_of

Inner = Callable[..., Any]


async def fine(_scope: Any, _receive: Any, send: Any) -> None:
    await send_json(send, b"{}")


def raising(error: Exception, *, begun: bool = False) -> Inner:
    async def inner(_scope: Any, _receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise error

    return inner


class Counted:
    """A middleware that counts."""

    def __init__(self, inner: Inner = fine) -> None:
        self.counted: list[tuple[str, int]] = []
        self.scopes: list[Any] = []

        async def seen(scope: Any, receive: Any, send: Any) -> None:
            self.scopes.append(scope)
            await inner(scope, receive, send)

        self.app = RequestMiddleware(
            seen,
            route_of=lambda path: path if path == "/known" else "other",
            answered=lambda route, status: self.counted.append((route, status)),
        )

    def ask(self, path: str = "/known", **more: Any) -> Asked:
        return ask(self.app, "GET", path, **more)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("mine-1", "mine-1"),
        ("a.b_c:d/e+f=g@h", "a.b_c:d/e+f=g@h"),
        ("two words\tand\x7fmore", "twowordsandmore"),
        ("x" * 500, "x" * 128),
        ("\u00e9" * 200 + "end", "end"),
    ],
)
def test_an_identifier_keeps_what_can_break_neither_log_nor_header(given: str, kept: str) -> None:
    assert request_id_of(given) == kept


@pytest.mark.parametrize("given", [None, "", "   ", "\u00e9\u00e9"])
def test_an_identifier_of_nothing_is_made_anew(given: str | None) -> None:
    made = {request_id_of(given) for _ in range(3)}
    assert len(made) == 3
    assert all(len(one) == 32 for one in made)


@pytest.mark.parametrize("name", ["X-Request-Id", "x-request-id", "X-REQUEST-ID"])
async def test_the_identifier_comes_back_whatever_the_case_of_its_header(name: str) -> None:
    asked = await Counted().ask(headers=[(name, "mine")]).done()
    assert asked.headers["x-request-id"] == "mine"


async def test_an_error_carries_the_identifier_too() -> None:
    asked = (
        await Counted(raising(InvalidRequest("no", param="p"))).ask(headers=[("X-Request-Id", "mine")]).done()
    )
    assert (asked.status, asked.headers["x-request-id"]) == (400, "mine")
    assert asked.error == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "p",
        "code": "invalid_value",
    }


async def test_a_path_a_client_made_up_is_counted_as_other() -> None:
    middleware = Counted()
    await middleware.ask("/made/up").done()
    await middleware.ask().done()
    assert middleware.counted == [("other", 200), ("/known", 200)]


async def test_a_defect_is_a_500_that_tells_nothing_of_the_inside() -> None:
    middleware = Counted(raising(KeyError("secret")))
    asked = await middleware.ask().done()
    assert (asked.status, asked.error["code"], asked.error["type"]) == (500, "internal_error", "server_error")
    assert b"secret" not in asked.body
    assert middleware.counted == [("/known", 500)]


async def test_an_error_after_the_whole_answer_is_logged_and_no_more() -> None:
    async def inner(_scope: Any, _receive: Any, send: Any) -> None:
        await send_json(send, b"{}", 500)
        raise RuntimeError("told already")

    middleware = Counted(inner)
    with capture_logs() as lines:
        asked = await middleware.ask().done()
    assert (asked.status, asked.body) == (500, b"{}")
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["unexpected_error"]
    assert middleware.counted == [("/known", 500)]


async def test_an_error_after_the_answer_began_closes_it_unfinished_and_keeps_its_status() -> None:
    middleware = Counted(raising(RuntimeError("late"), begun=True))
    asked = Asked(middleware.app, "GET", "/known")
    with pytest.raises(RuntimeError, match="late"):
        await asked.done()
    assert (asked.status, asked.complete, asked.body) == (200, False, b"half")
    assert middleware.counted == [("/known", 200)]


async def test_a_client_that_left_gets_nothing_and_counts_as_499() -> None:
    middleware = Counted(raising(ClientGone()))
    asked = await middleware.ask().done()
    assert asked.messages == []
    assert middleware.counted == [("/known", 499)]


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (HTTPException(404), 404, "not_found"),
        (HTTPException(405, headers={"Allow": "GET, HEAD"}), 405, "method_not_allowed"),
        (HTTPException(400, "a bad path"), 400, "invalid_value"),
    ],
)
async def test_what_the_router_raises_becomes_the_envelope(
    raised: HTTPException, status: int, code: str
) -> None:
    asked = await Counted(raising(raised)).ask().done()
    assert (asked.status, asked.error["code"], asked.error["type"]) == (status, code, "invalid_request_error")
    assert asked.headers.get("allow") == ("GET, HEAD" if status == 405 else None)
    assert int(asked.headers["content-length"]) == len(asked.body)


async def test_what_is_no_http_is_not_answered() -> None:
    middleware = Counted()
    await middleware.app({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await middleware.app({"type": "websocket", "path": "/known", "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent == ["websocket.close"]
    assert (middleware.scopes, middleware.counted) == ([], [])


FORKED = """
import os
from mamba_edge.exchange.request_middleware import request_id_of
request_id_of(None)  # some are drawn by now that are not given out
child = os.fork()
for _ in range(100):
    os.write(1, request_id_of(None).encode() + b" ")
if child:
    os.waitpid(child, 0)
"""


def test_a_child_process_gives_out_other_ids_than_its_parent() -> None:
    told = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert len(set(told.stdout.split())) == 200


async def test_the_trace_of_the_caller_goes_on_and_a_wrong_one_is_none() -> None:
    middleware = Counted()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await middleware.ask(headers=[("TraceParent", parent)]).done()
    await middleware.ask(headers=[("traceparent", "nonsense")]).done()
    given, none = (context_of(scope).trace.traceparent() for scope in middleware.scopes)
    assert given == parent
    assert none == ""


ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ApiError)]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_in_the_tree(cls: type[ApiError]) -> None:
    assert errors.__doc__ is not None
    [line] = [line for line in errors.__doc__.splitlines() if cls.__name__ in line.split()]
    if "status" in vars(cls) and cls is not ApiError:
        assert str(cls.status) in line
        assert ("Retry-After" in line) == (cls.retry_after is not None)
    if "code" in vars(cls) and cls is not ApiError:
        assert str(cls.code) in line


@pytest.mark.parametrize(("seconds", "header"), [(0.01, "1"), (1.0, "1"), (1.4, "2"), (59.9, "60")])
def test_retry_after_is_a_whole_number_of_at_least_one(seconds: float, header: str) -> None:
    assert ApiError("x", retry_after=seconds).headers() == {"retry-after": header}
