"""The official openai client over a scripted engine whose template shows reasoning, calls and messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import openai

from scripted_engine import READY, Api

TEMPLATE = (
    "{% if tools %}tools {{ tools | tojson }} call <tool_call>{...}</tool_call> {% endif %}"
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ (m.content or '').split('</think>')[-1] }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments.a }}]"
    "{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>{% if reasoning_effort %}{{ reasoning_effort }}"
    "{% endif %}{% endif %}"
)


def served(**options: Any) -> Api:
    """Return a server whose context has room for tools."""
    api = Api(template=TEMPLATE, **options)
    api.engine.send(msgspec.structs.replace(READY, max_model_len=2048))
    return api


@asynccontextmanager
async def client_of(api: Api, key: str = "any") -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api.app))
    async with openai.AsyncOpenAI(
        base_url="http://engine/v1", api_key=key, max_retries=0, http_client=transport
    ) as client:
        yield client
