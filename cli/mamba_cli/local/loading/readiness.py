"""Short HTTP requests to engines and gateways, which ask for their readiness or change live settings.

A request ends after `TIMEOUT` at the latest. Each function documents its result for a missing answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from mamba_cli.scrape import read_metrics

TIMEOUT = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True, slots=True)
class EngineReadiness:
    """An engine's answer to `/readyz`: while it loads, the stage and its progress, `done` of `total`."""

    ready: bool
    stage: str = ""
    done: int = 0
    total: int = 0
    reason: str = ""


async def engine_readiness(session: aiohttp.ClientSession, url: str) -> EngineReadiness | None:
    """Return the readiness of the engine at `url`; None = nothing answers yet."""
    answer = await _get(session, f"{url}/readyz")
    return None if answer is None else readiness_of(*answer)


async def gateway_ready(session: aiohttp.ClientSession, url: str, engine_url: str) -> bool:
    """Return whether the gateway at `url` may send requests to the engine at `engine_url`.

    The check names the engine, because the port can belong to a gateway of another process. The result is
    False without an answer.
    """
    try:
        async with session.get(f"{url}/metrics", timeout=TIMEOUT) as answer:
            metrics = (
                read_metrics((await answer.read()).decode("utf-8", "replace"))
                if answer.status == 200
                else None
            )
    except (TimeoutError, aiohttp.ClientError, OSError):
        return False
    engine = urlsplit(engine_url).netloc
    return metrics is not None and metrics.total("mambaserve_gateway_endpoint_ready", endpoint=engine) == 1


async def takes_chats(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    """Return whether the model has a chat template; True without a readable answer.

    The request exceeds every context length, so that nothing is generated.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2**31 - 1}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT) as answer:
            body_received = await answer.json(content_type=None)
    except (ValueError, TimeoutError, aiohttp.ClientError, OSError):
        return True
    error = body_received.get("error") if isinstance(body_received, dict) else None
    return not (isinstance(error, dict) and error.get("code") == "no_chat_template")


def readiness_of(status: int, body: dict[str, Any]) -> EngineReadiness:
    """Read the answer of an engine; its fields may be absent or null."""
    return EngineReadiness(
        ready=status == 200,
        stage=str(body.get("stage") or body.get("status") or ""),
        done=_count(body.get("done")),
        total=_count(body.get("total")),
        reason=str(body.get("reason") or ""),
    )


async def put_strategy(session: aiohttp.ClientSession, admin_url: str, body: Mapping[str, Any]) -> str:
    """Send live settings to the engine; return why they were not applied, or an empty string."""
    try:
        async with session.put(f"{admin_url}/admin/strategy", json=dict(body), timeout=TIMEOUT) as answer:
            if answer.status < 300:
                return ""
            return f"the engine answered {answer.status}: {_reason(await answer.text())[:300]}"
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        return f"the engine cannot be reached: {error or type(error).__name__}"


def _reason(text: str) -> str:
    """Return the message in an OpenAI error body, or the text unchanged."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text


async def _get(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]] | None:
    try:
        async with session.get(url, timeout=TIMEOUT) as answer:
            body = await answer.json(content_type=None)
            return answer.status, body if isinstance(body, dict) else {}
    except ValueError:
        return 0, {}
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0
