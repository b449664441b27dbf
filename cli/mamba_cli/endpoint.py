"""An OpenAI-compatible endpoint as commands reach it: its base URL, its key, its refusals in words."""

import re
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from mamba_cli.errors import CliError, InvalidInput, RunFailed

DEFAULT_URL = "http://127.0.0.1:8000"
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/v1)?/?")
_NO_HTTP = 0


def base_url(text: str) -> str:
    """The URL without /v1 and slashes at its end. Raises `InvalidInput` for what is no URL."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(f"{text!r} is no URL: write it like {DEFAULT_URL}")
    return text.rstrip("/").removesuffix("/v1")


def without_scheme(text: str) -> InvalidInput | None:
    """What to say of an address such as localhost:8000 where a URL is meant; None = it is no address."""
    if _ADDRESS.fullmatch(text) is None:
        return None
    return InvalidInput(f"{text} is no URL: write http://{text}")


def headers(api_key: str | None) -> dict[str, str]:
    """What a request carries to be let in."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def unreachable(url: str, error: Exception) -> RunFailed:
    """Nobody answers at `url`."""
    if isinstance(error, TimeoutError):
        return RunFailed(f"{url} does not answer in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RunFailed(f"nothing answers at {url}: start it, as with mambaserve up FILE, or give its URL")
    return RunFailed(f"{url}: the connection broke: {error or type(error).__name__}")


def refusal(url: str, status: int, body: Any) -> CliError:
    """The server's own words, and what to do where that is known."""
    error = body.get("error") if isinstance(body, dict) else None
    message = str(error.get("message") or "") if isinstance(error, dict) else ""
    if status in (401, 403):
        return InvalidInput(f"{url} wants an API key: --api-key or MAMBASERVE_API_KEY ({message or status})")
    if not message:
        return RunFailed(f"{url} answered {status} and is no server that this command knows")
    return RunFailed(f"{url} answered {status}: {message}")


async def first_model(session: aiohttp.ClientSession, url: str, api_key: str | None) -> str:
    """The first model that is listed. Raises `RunFailed`, `InvalidInput`."""
    try:
        async with session.get(f"{url}/v1/models", headers=headers(api_key)) as answer:
            status, body = answer.status, await answer.json(content_type=None)
    except ValueError:
        status, body = _NO_HTTP, None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise unreachable(url, error) from error
    if status != 200:
        raise refusal(url, status, body)
    data = body.get("data") if isinstance(body, dict) else None
    names = [each["id"] for each in data if isinstance(each, dict) and isinstance(each.get("id"), str)] if (
        isinstance(data, list)
    ) else []  # fmt: skip
    if not names:
        raise RunFailed(f"{url} serves no model at the moment: mambaserve status {url} says more")
    return str(names[0])
