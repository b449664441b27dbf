"""Client of the engines' admin ports: sends live settings and other calls, and fetches memory plans.

Called by `reconcile`, by `AdapterUpdates` and by `ReportedPlanPoller`. Failures are returned, not raised.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from mamba_api import names
from mamba_api.names import authority
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.render.live_settings import RejectedUpdate, SettingsUpdate

TIMEOUT = aiohttp.ClientTimeout(total=5)
LONG_CALL = aiohttp.ClientTimeout(total=330, connect=5)
"""Time of a call for which an engine may download files, a little longer than the engine allows itself."""
MAX_ERROR_CHARS = 500
"""Characters of an error message that are kept."""
MAX_PLAN_BYTES = 1 << 20
"""Bytes of a plan that are read; a usual one has some thousand."""
AdminResponse = tuple[int, str]
"""(HTTP status, or 0 without a response; message of the response or of the error)."""
Put = Callable[[str, str, Mapping[str, Any]], Awaitable[AdminResponse]]
"""Sends `PUT /admin/strategy` to (address of the pod, token, body)."""
GetPlan = Callable[[str, str], Awaitable[str | None]]
"""Sends `GET /admin/plan` to (address of the pod, token) and returns JSON; None without such an answer."""
AdminCall = Callable[[str, str, str, Mapping[str, Any] | None], Awaitable[tuple[int, Any]]]
"""Calls (address of the pod, token, path, body) and returns (HTTP status, JSON of the body, or the message of
an error); status 0 without a response."""


async def put_strategy(
    address: str, token: str, body: Mapping[str, Any], port: int = names.ADMIN_PORT
) -> AdminResponse:
    """Send live settings to one engine and return its response; status 0 if the engine gives none."""
    status, text = await _answer("PUT", f"http://{authority(address, port)}/admin/strategy", token, body)
    return status, _error_message(text) if status else text


async def call_admin(
    address: str, token: str, path: str, body: Mapping[str, Any] | None = None, port: int = names.ADMIN_PORT
) -> tuple[int, Any]:
    """Send one call to the admin port of an engine: a GET without `body`, a POST with one.

    Return the status and the JSON of the answer, or the message of an error; status 0 without a readable
    answer.
    """
    method, url = "GET" if body is None else "POST", f"http://{authority(address, port)}{path}"
    status, text = await _answer(method, url, token, body, LONG_CALL)
    if status >= 400:
        return status, _error_message(text)
    try:
        return status, json.loads(text) if status else text
    except ValueError as error:
        return 0, str(error)


async def _answer(
    method: str,
    url: str,
    token: str,
    body: Mapping[str, Any] | None,
    timeout: aiohttp.ClientTimeout = TIMEOUT,
) -> tuple[int, str]:
    """Send one call and return the status and text of the response.

    Without a response, the status is 0 and the text is the error.
    """
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method, url, json=None if body is None else dict(body), headers=headers
            ) as answer,
        ):
            return answer.status, await answer.text()
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        return 0, str(error) or type(error).__name__


async def get_plan(address: str, token: str, port: int = names.ADMIN_PORT) -> str | None:
    """Return the plan that one engine runs with, as the text of a JSON document.

    None if the engine does not answer in time, answers with an error, or sends more than `MAX_PLAN_BYTES`.
    """
    url = f"http://{authority(address, port)}/admin/plan"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.get(url, headers=headers) as answer,
        ):
            body = await answer.content.read(MAX_PLAN_BYTES + 1) if answer.status == 200 else b""
            return body.decode(errors="replace") if 0 < len(body) <= MAX_PLAN_BYTES else None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None


async def send_updates(
    settings_updates: Sequence[SettingsUpdate], token: str, put: Put
) -> tuple[RejectedUpdate, ...]:
    """Send all updates concurrently, and return those that engines did not accept."""
    responses = await asyncio.gather(
        *(put(update.address, token, update.body) for update in settings_updates)
    )
    return tuple(
        RejectedUpdate(update, f"engine {update.pod}: {message}", final=400 <= status < 500)
        for update, (status, message) in zip(settings_updates, responses, strict=True)
        if not 200 <= status < 300
    )


def _error_message(text: str) -> str:
    """Return the message in an error envelope, or the text itself if it is no envelope."""
    try:
        envelope = json.loads(text)
        text = str(envelope["error"]["message"])
    except (ValueError, KeyError, TypeError):
        pass
    return text[:MAX_ERROR_CHARS]


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """The functions by which the operator reaches running engines."""

    key: AdminKey | None = None
    """Key from which admin tokens are derived; None = engines cannot be reached."""
    put: Put = put_strategy
    """Sends live settings to one engine."""
    call: AdminCall = call_admin
    """Sends other calls to one engine."""
    read: ReadMetrics | None = None
    """Reads the `/metrics` of a pod; None = no deletion costs are written to pods."""
