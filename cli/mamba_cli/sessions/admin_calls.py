"""The calls to an engine's admin server that save and load sessions, and how its address is found.

`mambaserve session` makes them. The commands of `up` find the engines by the records of `mamba_cli.local`.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from mamba_cli.endpoint import base_url, headers, unreachable
from mamba_cli.errors import CliError, InvalidInput, NoFittingPlan, RunFailed
from mamba_cli.local.running import running
from mamba_edge.listener import is_loopback
from mamba_tier.errors import TierError
from mamba_tier.session_file import SessionFile, is_whole, read_session

PIECE = 1 << 20
FORM = "application/vnd.mambaserve.session"
NO_ADMIN = (404, 405)
"""Statuses of servers that are no admin servers."""
NOT_FOUND = ("no_explanation", "model_not_found")
"""Codes of the errors with which an admin server says that it does not have what was asked for."""


def admin_urls(target: str) -> list[str]:
    """Return the addresses at which an admin server for `target` may be, the likeliest first.

    `target` is the URL of an `up`, of an engine or of its admin server, or the name of a deployment. Raises
    InvalidInput.
    """
    served = running()
    if "://" not in target:
        for deployment in served:
            if deployment.name == target:
                return list(deployment.admin_urls)
    target = base_url(target)
    for deployment in served:
        if deployment.url == target:
            return list(deployment.admin_urls)
    parts = urlsplit(target)
    urls = [target]
    if parts.hostname is not None and is_loopback(parts.hostname) and parts.port is not None:
        # An engine's admin server has the next port, unless an option says otherwise.
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        urls.append(f"{parts.scheme}://{host}:{parts.port + 1}")
    return urls


class AdminClient:
    """Saves and loads sessions at the admin servers among `urls`, of one deployment's replicas.

    `token` is the admin token, if one is needed; a call fails after `timeout` seconds without a byte.
    """

    def __init__(self, urls: list[str], token: str | None, timeout: float) -> None:
        self._urls, self._headers = urls, headers(token)
        self._limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout)

    async def save(self, conversation: bytes, file: Path) -> SessionFile:
        """Save a conversation to `file`, which is written whole or not at all.

        The replica that has most of it cached saves it. Raises CliError.
        """
        if len(self._urls) > 1:
            await self._prefer_holder(conversation)
        async with self._answer("POST", conversation, "application/json") as answer:
            try:
                descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
            except OSError as error:
                raise InvalidInput(f"{file} cannot be written: {error.strerror}") from error
            try:
                with os.fdopen(descriptor, "w+b") as written:
                    async for piece in answer.content.iter_chunked(PIECE):
                        written.write(piece)
                    written.flush()
                    session = checked(written.fileno(), file)
                os.replace(name, file)
            except OSError as error:
                raise RunFailed(f"{file} cannot be written: {error.strerror or error}") from error
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        return session

    async def load(self, file: Path, conversation: bytes = b"") -> dict[str, Any]:
        """Send a session file to a replica; return its reply. Raises CliError.

        The replica that has most of `conversation` cached gets the file, so that no second replica holds the
        state. If no replica has any of it, the first one with room gets the file.
        """
        if len(self._urls) > 1 and conversation:
            await self._prefer_holder(conversation)
        async with self._answer("PUT", file, FORM) as answer:
            reply: dict[str, Any] = await answer.json()
        return reply

    async def _prefer_holder(self, conversation: bytes) -> None:
        """Order the addresses by how much of a conversation their engines have cached."""
        async with aiohttp.ClientSession(timeout=self._limits) as session:
            depths = await asyncio.gather(*(self._depth(session, url, conversation) for url in self._urls))
        by_url = dict(zip(self._urls, depths, strict=True))
        self._urls = sorted(self._urls, key=lambda url: -by_url[url])

    async def _depth(self, session: aiohttp.ClientSession, url: str, conversation: bytes) -> int:
        """Return the tokens of a conversation that an engine has cached; 0 also without an answer."""
        fields = {**self._headers, "content-type": "application/json"}
        try:
            async with session.post(
                f"{url}/admin/session/depth", data=conversation, headers=fields
            ) as answer:
                return int((await answer.json())["depth"]) if answer.status == 200 else 0
        except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError):
            return 0

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, body: bytes | Path, form: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a call to one address after the other; yield the first good answer. Raises CliError."""
        refusals: list[CliError] = []
        fields = {**self._headers, "content-type": form}
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession(timeout=self._limits))
            for url in self._urls:
                data = body if isinstance(body, bytes) else stack.enter_context(body.open("rb"))
                try:
                    answer = await session.request(method, f"{url}/admin/session", data=data, headers=fields)
                    if answer.status >= 400:
                        refusals.append(await refusal_of(url, answer))
                        continue
                except (TimeoutError, aiohttp.ClientError) as error:
                    refusals.append(unreachable(url, error))
                    continue
                try:
                    yield answer
                except (TimeoutError, aiohttp.ClientError) as error:
                    raise unreachable(url, error) from error
                return
        raise clearest(refusals)


def clearest(refusals: list[CliError]) -> CliError:
    """Return the error that says most: the first one that is no `RunFailed`, else the first one."""
    nothing = RunFailed("the deployment has no engine that writes answers")
    wrong = [refusal for refusal in refusals if not isinstance(refusal, RunFailed)]
    return (wrong or refusals or [nothing])[0]


async def refusal_of(url: str, answer: aiohttp.ClientResponse) -> CliError:
    """Return the error for an answer of a server with a status of 400 or more."""
    message, code = f"status {answer.status}", ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = (await answer.json(content_type=None))["error"]
        message, code = str(error["message"]), str(error["code"])
    if code in NOT_FOUND:
        return InvalidInput(f"{url}: {message}")
    if answer.status in NO_ADMIN:
        return RunFailed(
            f"{url} is no admin server of an engine: give the admin URL that the engine prints when it is "
            "ready, or the URL or name of a deployment that `up` serves"
        )
    if answer.status in (401, 403):
        return InvalidInput(f"{url} requires the admin token: give --admin-token-file ({message})")
    if answer.status == 413:
        return NoFittingPlan(f"{url}: {message}")
    if answer.status in (400, 409, 422):
        return InvalidInput(f"{url}: {message}")
    return RunFailed(f"{url} answered {answer.status}: {message}")


def checked(descriptor: int, file: Path) -> SessionFile:
    """Return the session in a file of which every byte is right. Raises InvalidInput, OSError."""
    try:
        session = read_session(descriptor)
        if is_whole(descriptor, session):
            return session
    except TierError as error:
        raise InvalidInput(f"{file}: {error}") from error
    raise InvalidInput(f"{file}: the state in the file is damaged: its checksums differ")
