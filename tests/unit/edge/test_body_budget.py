"""The budget of bodies: what is taken is given back, whatever becomes of the request."""

import tracemalloc

import pytest
from starlette.types import Receive, Scope, Send

from asgi import Asked
from mamba_edge.errors import BodyTooLarge, TooManyBodies
from mamba_edge.exchange.asgi_responses import send_json
from mamba_edge.exchange.request_body import BodyBudget, BodyShare, read_body
from mamba_edge.exchange.request_context import context_of
from mamba_edge.exchange.request_middleware import RequestMiddleware


async def read(share: BodyShare, *parts: bytes, limit: int = 100, length: int | None = None) -> bytes:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    waiting = iter(messages)

    async def receive() -> dict[str, object]:
        return next(waiting)

    return await read_body(headers, receive, limit, share=share)


async def test_bytes_are_taken_as_they_come_and_given_back_at_the_end() -> None:
    budget = BodyBudget(10)
    first, second = BodyShare(budget), BodyShare(budget)
    assert await read(first, b"1234", b"56") == b"123456"
    assert budget.held == 6
    with pytest.raises(TooManyBodies) as caught:
        await read(second, b"1234", b"5")
    assert caught.value.headers() == {"retry-after": "2"}
    assert budget.held == 6
    first.release()
    assert await read(second, b"1234", b"5") == b"12345"


async def test_a_body_that_cannot_fit_is_refused_by_its_length_and_takes_nothing() -> None:
    budget = BodyBudget(10)
    share = BodyShare(budget)
    with pytest.raises(TooManyBodies):
        await read(share, length=11)
    assert budget.held == 0
    assert await read(share, b"1", length=10) == b"1"


async def test_a_body_that_is_too_large_gives_back_what_it_took() -> None:
    budget = BodyBudget(1000)
    with pytest.raises(BodyTooLarge):
        await read(BodyShare(budget), b"x" * 60, b"x" * 60)
    assert budget.held == 0


async def test_a_body_of_tiny_parts_holds_little_more_memory_than_its_bytes() -> None:
    count = 20_000

    async def receive() -> dict[str, object]:
        nonlocal count
        count -= 1
        return {"type": "http.request", "body": b"%03d" % (count % 1000), "more_body": count > 0}

    tracemalloc.start()
    try:
        body = await read_body([], receive, 100_000, share=BodyShare(BodyBudget(100_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(body)


@pytest.mark.parametrize("end", ["answer", "gone", "late", "failure"])
async def test_the_share_of_a_request_ends_with_it(end: str) -> None:
    budget = BodyBudget(10)
    seen: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seconds = 0.001 if end == "late" else 60
        await read_body([], receive, 100, seconds, share=context_of(scope).body_share)
        seen.append(budget.held)
        if end == "failure":
            raise RuntimeError
        await send_json(send, b"{}")

    counted = RequestMiddleware(app, route_of=str, answered=lambda *_: None, bodies=budget)
    asked = Asked(counted, "POST", "/x").part(b"12345")
    if end == "gone":
        asked.leave()
    elif end != "late":
        asked.part(b"6", more=False)
    await asked.done()
    assert asked.status == {"answer": 200, "gone": 0, "late": 408, "failure": 500}[end]
    assert seen == ([6] if end in ("answer", "failure") else [])
    assert budget.held == 0
