"""Bodies that are made to cost much: each is told its first wrong element, and nothing is collected."""

import json
from typing import Any

import pytest

from asgi import Asked, ask
from hostile_bodies import HostileBody, hostile_bodies
from mamba_edge.app import application
from matrix_size import LARGE
from scripted_engine import Api

JSON = [("Content-Type", "application/json")]
BODIES = hostile_bodies(200_000 if LARGE else 50_000)


async def answer(body: HostileBody) -> Asked:
    return await ask(Api().app, "POST", body.path, body.body, headers=JSON).done(60)


@pytest.mark.parametrize("body", BODIES, ids=[body.name for body in BODIES])
async def test_it_is_refused_at_its_first_wrong_element_with_few_complaints(
    body: HostileBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[int] = []
    real = application.invalid
    monkeypatch.setattr(
        application, "invalid", lambda errors: (complaints.append(len(errors)), real(errors))[1]
    )
    asked = await answer(body)
    assert asked.status == 400
    assert len(asked.body) < 1000
    if body.param is not None:
        assert asked.error["message"].startswith(f"{body.param}: ")
        assert asked.error.get("param", body.param) == body.param  # which not every dialect has
    assert sum(complaints) <= 10


@pytest.mark.parametrize(
    ("path", "text", "field"),
    [
        ("/v1/chat/completions", "messages", {"suffix": "x"}),
        ("/v1/messages", "messages", {"mcp_servers": [{"url": "x"}]}),
        ("/v1/responses", "input", {"conversation": "c"}),
    ],
)
async def test_a_field_is_refused_by_its_name_in_a_large_body_too(
    path: str, text: str, field: dict[str, Any]
) -> None:
    turns = [{"role": "user", "content": "word " * 20_000}]
    body = json.dumps({text: turns, "max_tokens": 1, **field}).encode()
    asked = await answer(HostileBody("large", path, body))
    assert asked.status == 400
    assert asked.error["message"].startswith(f"{next(iter(field))}: ")
