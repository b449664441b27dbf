"""Asks children over HTTP whether they are ready, and engines for another strategy. Short calls only."""

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
    """What `/readyz` says. `stage` with `done` of `total` while loading."""

    ready: bool
    stage: str = ""
    done: int = 0
    total: int = 0
    reason: str = ""


async def engine_readiness(session: aiohttp.ClientSession, url: str) -> EngineReadiness | None:
    """None = nobody answers yet."""
    answer = await _get(session, f"{url}/readyz")
    return None if answer is None else readiness_of(*answer)


async def gateway_ready(session: aiohttp.ClientSession, url: str, engine_url: str) -> bool:
    """Whether the gateway at `url` may send requests to the engine at `engine_url`.

    Asked for that very engine: on a port that another program got first, its gateway would answer for ours.
    """
    try:
        async with session.get(f"{url}/metrics", timeout=TIMEOUT) as answer:
            told = (
                read_metrics((await answer.read()).decode("utf-8", "replace"))
                if answer.status == 200
                else None
            )
    except (TimeoutError, aiohttp.ClientError, OSError):
        return False
    engine = urlsplit(engine_url).netloc
    return told is not None and told.total("mambaserve_gateway_endpoint_ready", endpoint=engine) == 1


async def takes_chats(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    """Whether the model has a chat template. Nothing is generated: the request is longer than any context."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2**31 - 1}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT) as answer:
            said = await answer.json(content_type=None)
    except (ValueError, TimeoutError, aiohttp.ClientError, OSError):
        return True
    error = said.get("error") if isinstance(said, dict) else None
    return not (isinstance(error, dict) and error.get("code") == "no_chat_template")


def readiness_of(status: int, body: dict[str, Any]) -> EngineReadiness:
    """Reads the answer of an engine, tolerating fields that are absent or null."""
    return EngineReadiness(
        ready=status == 200,
        stage=str(body.get("stage") or body.get("status") or ""),
        done=_count(body.get("done")),
        total=_count(body.get("total")),
        reason=str(body.get("reason") or ""),
    )


async def put_strategy(session: aiohttp.ClientSession, admin_url: str, body: Mapping[str, Any]) -> str:
    """Ask the engine for other live settings; empty = done, else why not."""
    try:
        async with session.put(f"{admin_url}/admin/strategy", json=dict(body), timeout=TIMEOUT) as answer:
            if answer.status < 300:
                return ""
            return f"the engine answered {answer.status}: {_reason(await answer.text())[:300]}"
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        return f"the engine cannot be reached: {error or type(error).__name__}"


def _reason(text: str) -> str:
    """The message of an error envelope, or the text as it is."""
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
