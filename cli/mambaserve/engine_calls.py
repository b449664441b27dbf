"""`EngineCalls`: requests to the engine of one `LLM`, many at once, with retries where the engine asks."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from mamba_cli.endpoint import headers
from mamba_cli.errors import CliError
from mamba_cli.local.own_engine import OwnEngine, ended
from mamba_cli.sessions.admin_calls import AdminClient
from mambaserve.errors import EngineEnded, RequestRefused

WINDOW = 256
"""Requests in flight at once: more than an engine computes, so that it never waits for the next one."""
_BUSY = (429, 503)
"""Statuses of an engine that takes the request later: its queue is full, or it restarts."""
LONGEST_PAUSE = 5.0
"""Seconds between two tries of a request that the engine could not take, at most."""
SESSION_SECONDS = 300.0
"""Time without a byte of a session after which the call gives up."""


class EngineCalls:
    """Sends requests to one engine; its coroutines run in one event loop."""

    def __init__(self, engine: OwnEngine) -> None:
        self._engine = engine
        self._admin = AdminClient([engine.admin_url], engine.admin_token, SESSION_SECONDS)
        self._session: aiohttp.ClientSession | None = None

    async def post_all(
        self, path: str, bodies: Sequence[dict[str, Any]], done: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """Send all bodies and return the answers in their order; `done` receives the number of each answer.

        The first refusal cancels the other requests. Raises `RequestRefused`, `EngineEnded`.
        """
        window = asyncio.Semaphore(WINDOW)

        async def one(index: int, body: dict[str, Any]) -> dict[str, Any]:
            async with window:
                answer = await self._post(path, body, index)
            done(index)
            return answer

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(index, body)) for index, body in enumerate(bodies)]
        # With `except*`, Python 3.11.2 would wrap the single error in a group again.
        except ExceptionGroup as errors:
            refusals, others = errors.split((RequestRefused, EngineEnded))
            if refusals is None or others is not None:
                raise
            raise refusals.exceptions[0] from None
        return [task.result() for task in tasks]

    async def save_session(self, conversation: dict[str, Any], file: Path) -> None:
        """Write the state of a conversation to a session file. Raises `RequestRefused`, `EngineEnded`."""
        with self._session_errors():
            await self._admin.save(json.dumps(conversation).encode(), file)

    async def load_session(self, file: Path) -> None:
        """Install a session file. Raises `RequestRefused`, `EngineEnded`."""
        with self._session_errors():
            await self._admin.load(file)

    @contextlib.contextmanager
    def _session_errors(self) -> Iterator[None]:
        """Turn the errors of a session into errors of this package."""
        try:
            yield
        except CliError as error:
            if self._engine.process.poll() is not None:
                raise self._gone(error) from error
            raise RequestRefused(str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, path: str, body: dict[str, Any], index: int) -> dict[str, Any]:
        url, fields = self._engine.url + path, headers(self._engine.api_key)
        while True:
            try:
                async with self._client().post(url, json=body, headers=fields) as answer:
                    if answer.status == 200:
                        return dict(await answer.json())
                    if answer.status not in _BUSY:
                        raise await _refusal(answer, index)
                    pause = float(answer.headers.get("Retry-After") or 1)
            except (aiohttp.ClientError, OSError) as error:
                raise self._gone(error) from error
            if self._engine.process.poll() is not None:
                raise self._gone(None)
            await asyncio.sleep(min(pause, LONGEST_PAUSE))

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            # An answer may take as long as the model needs.
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._session

    def _gone(self, error: Exception | None) -> EngineEnded:
        if (code := self._engine.process.poll()) is not None:
            return EngineEnded(str(ended(code, self._engine.log)))
        return EngineEnded(f"the connection to the engine broke: {error or 'without a reason'}")


async def _refusal(answer: aiohttp.ClientResponse, index: int) -> RequestRefused:
    try:
        message = str((await answer.json(content_type=None))["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the engine answered {answer.status}"
    return RequestRefused(message, answer.status, index)
