"""OpenAI-compatible endpoints: base URLs, authorization headers, and errors for failed requests."""

import json
import re
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from mamba_cli.errors import CliError, InvalidInput, RunFailed

DEFAULT_URL = "http://127.0.0.1:8000"
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/v1)?/?")


def base_url(text: str) -> str:
    """Return the URL without /v1 and slashes at its end. Raises `InvalidInput` if it is not an HTTP URL."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(f"{text!r} is not a URL: write a URL such as {DEFAULT_URL}")
    return text.rstrip("/").removesuffix("/v1")


def without_scheme(text: str) -> InvalidInput | None:
    """Return the error for an address without http://, such as localhost:8000; None = it is no address."""
    if _ADDRESS.fullmatch(text) is None:
        return None
    return InvalidInput(f"{text} is not a URL: write http://{text}")


def headers(api_key: str | None) -> dict[str, str]:
    """Return the authorization headers of a request."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def unreachable(url: str, error: Exception) -> RunFailed:
    """Return the error for a connection to `url` that failed."""
    if isinstance(error, TimeoutError):
        return RunFailed(f"{url} does not answer in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RunFailed(
            f"nothing answers at {url}: start a server, such as mambaserve up FILE, or give its URL"
        )
    return RunFailed(f"{url}: the connection broke: {error or type(error).__name__}")


def refusal(url: str, status: int, body: Any) -> CliError:
    """Return the error for an answer of `status`, with the server's message and a remedy if there is one."""
    error = body.get("error") if isinstance(body, dict) else None
    message = str(error.get("message") or "") if isinstance(error, dict) else ""
    if status in (401, 403):
        return InvalidInput(
            f"{url} requires an API key: give --api-key or MAMBASERVE_API_KEY ({message or status})"
        )
    if not message:
        return RunFailed(f"{url} answered {status} and is not an OpenAI-compatible server")
    return RunFailed(f"{url} answered {status}: {message}")


async def first_model(session: aiohttp.ClientSession, url: str, api_key: str | None) -> str:
    """Return the first model that the endpoint lists. Raises `RunFailed`, `InvalidInput`."""
    try:
        async with session.get(f"{url}/v1/models", headers=headers(api_key)) as answer:
            status, text = answer.status, await answer.text(errors="replace")
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise unreachable(url, error) from error
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if status != 200 or not isinstance(body, dict):
        raise refusal(url, status, body)
    data = body.get("data")
    entries = data if isinstance(data, list) else []
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    names = [name for name in names if isinstance(name, str)]
    if not names:
        raise RunFailed(f"{url} serves no model at the moment: mambaserve status {url} shows why")
    return str(names[0])
