"""Tells running engines their settings through the admin port, and asks for their plan. What failed is
returned, not raised."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from mamba_api import names
from mamba_api.names import authority
from mamba_operator.render.live_settings import RejectedUpdate, SettingsUpdate

TIMEOUT = aiohttp.ClientTimeout(total=5)
MAX_WORDS = 500
MAX_PLAN = 1 << 20
"""Bytes of a plan; one has some thousand."""

AdminResponse = tuple[int, str]
"""(HTTP status, or 0 without a response; message of the response or of the error)."""
Put = Callable[[str, str, Mapping[str, Any]], Awaitable[AdminResponse]]
"""(address of the pod, token, body) of `PUT /admin/strategy`."""
GetPlan = Callable[[str, str], Awaitable[str | None]]
"""(address of the pod, token) of `GET /admin/plan`: JSON, or None where there was no such answer."""


async def put_strategy(
    address: str, token: str, body: Mapping[str, Any], port: int = names.ADMIN_PORT
) -> AdminResponse:
    """One engine's answer."""
    url = f"http://{authority(address, port)}/admin/strategy"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.put(url, json=dict(body), headers=headers) as answer,
        ):
            return answer.status, _error_message(await answer.text())
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        return 0, str(error) or type(error).__name__


async def get_plan(address: str, token: str, port: int = names.ADMIN_PORT) -> str | None:
    """The plan that one engine runs with."""
    url = f"http://{authority(address, port)}/admin/plan"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.get(url, headers=headers) as answer,
        ):
            body = await answer.content.read(MAX_PLAN + 1) if answer.status == 200 else b""
            return body.decode(errors="replace") if 0 < len(body) <= MAX_PLAN else None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None


async def send_updates(
    settings_updates: Sequence[SettingsUpdate], token: str, put: Put
) -> tuple[RejectedUpdate, ...]:
    """Send all updates concurrently; returns those that were not accepted."""
    answers = await asyncio.gather(*(put(one.address, token, one.body) for one in settings_updates))
    return tuple(
        RejectedUpdate(one, f"engine {one.pod}: {said}", final=400 <= status < 500)
        for one, (status, said) in zip(settings_updates, answers, strict=True)
        if not 200 <= status < 300
    )


def _error_message(text: str) -> str:
    """The message of an error envelope, or the text as it is."""
    try:
        said = json.loads(text)
        text = str(said["error"]["message"])
    except (ValueError, KeyError, TypeError):
        pass
    return text[:MAX_WORDS]
