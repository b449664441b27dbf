"""The calls to engines' admin servers that explain what prompts resume. `mambaserve why` makes them."""

import asyncio
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from mamba_cli.endpoint import headers, unreachable
from mamba_cli.errors import CliError
from mamba_cli.sessions.admin_calls import clearest, refusal_of

Answer = dict[str, Any]


class ExplanationClient:
    """Asks the admin servers at `urls`, of one deployment's engines, what prompts resumed and why.

    `token` is the admin token, if one is needed; a call takes at most `timeout` seconds.
    """

    def __init__(self, urls: list[str], token: str | None, timeout: float) -> None:
        self._urls, self._headers = urls, headers(token)
        self._limits = aiohttp.ClientTimeout(total=timeout, sock_connect=10)

    async def recent(self, name: str) -> Answer:
        """Return the explanation that an engine keeps of the request with the identifier `name`.

        Raises CliError.
        """
        return (await self._answers("GET", f"/admin/explanations/{quote(name, safe='')}"))[0]

    async def dry_run(self, conversation: bytes, key: str) -> list[Answer]:
        """Return how much each engine would resume of a conversation, the engine with the most first.

        `key` is the name of the API key whose texts may be shown. Raises CliError.
        """
        query = f"?{urlencode({'client': key})}" if key else ""
        answers = await self._answers("POST", f"/admin/explain{query}", conversation)
        return sorted(answers, key=lambda answer: -int(answer["explain"][0]["resumed_tokens"]))

    async def _answers(self, method: str, path: str, body: bytes | None = None) -> list[Answer]:
        """Return the good answers of the engines, at least one, each with its address. Raises CliError."""
        async with aiohttp.ClientSession(timeout=self._limits) as session:
            calls = (self._answer(session, method, url, path, body) for url in self._urls)
            results = await asyncio.gather(*calls)
        answers = [result for result in results if isinstance(result, dict)]
        if not answers:
            raise clearest([result for result in results if isinstance(result, CliError)])
        return answers

    async def _answer(
        self, session: aiohttp.ClientSession, method: str, url: str, path: str, body: bytes | None
    ) -> Answer | CliError:
        fields = {**self._headers, "content-type": "application/json"} if body is not None else self._headers
        try:
            async with session.request(method, url + path, data=body, headers=fields) as answer:
                if answer.status == 200:
                    return {"engine": url, **await answer.json()}
                return await refusal_of(url, answer)
        except (TimeoutError, aiohttp.ClientError) as error:
            return unreachable(url, error)
