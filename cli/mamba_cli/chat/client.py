"""`ChatClient`: sends a conversation and streams the answer, with the number of resumed prompt tokens."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from mamba_cli.endpoint import headers, refusal, unreachable
from mamba_cli.errors import RunFailed

Message = dict[str, str]
Show = Callable[[str], None]


@dataclass(slots=True)
class ChatAnswer:
    """The part of an answer that has arrived; the counts of tokens arrive with the last event."""

    text: str = ""
    reasoning: str = ""
    """Reasoning that precedes the answer."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""

    @property
    def resumed(self) -> str:
        """Token counts in words."""
        words = f"{self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens resumed, "
        words += f"{self.generated_tokens:,} generated"
        return words + (", cut at the length limit" if self.finish_reason == "length" else "")


@dataclass(slots=True)
class ChatClient:
    """Sends messages to one model at one endpoint, and shows the answers as they arrive.

    `plain` becomes true once the server says that the model has no chat template: prompts then go to the
    completion API.
    """

    session: aiohttp.ClientSession
    url: str
    model: str
    api_key: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as temperature."""
    plain: bool = False

    async def answer(self, messages: list[Message], show: Show, show_reasoning: Show) -> ChatAnswer:
        """Return the answer; `show` gets its text piece by piece, `show_reasoning` the preceding reasoning.

        Raises `RunFailed` and `InvalidInput` with the server's message, and `OutputError`.
        """
        try:
            return await self._answer(messages, show, show_reasoning)
        except _NoTemplate:
            self.plain = True
            return await self._answer(messages, show, show_reasoning)

    async def _answer(self, messages: list[Message], show: Show, show_reasoning: Show) -> ChatAnswer:
        conversation: dict[str, Any] = {"messages": messages}
        if self.plain:
            conversation = {"prompt": "\n".join(message["content"] for message in messages)}
        body = {
            "model": self.model, **conversation, **self.sampling,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        url = f"{self.url}/v1/{'' if self.plain else 'chat/'}completions"
        try:
            async with self.session.post(url, json=body, headers=headers(self.api_key)) as response:
                if response.status != 200:
                    raise await self._refused(response)
                return await _read(response, show, show_reasoning)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error

    async def _refused(self, response: aiohttp.ClientResponse) -> Exception:
        try:
            body = json.loads(await response.read())
        except ValueError:
            body = None
        error = body.get("error") if isinstance(body, dict) else None
        if not self.plain and isinstance(error, dict) and error.get("code") == "no_chat_template":
            return _NoTemplate()
        return refusal(self.url, response.status, body)


class _NoTemplate(Exception):
    """The model has no chat template."""


class OutputError(Exception):
    """The text could not be written to its output."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _write(show: Show, piece: str) -> None:
    if not piece:
        return
    try:
        show(piece)
    except OSError as error:
        # A full disk must be distinguished from the OSErrors of the connection.
        raise OutputError(error) from error


async def _read(response: aiohttp.ClientResponse, show: Show, show_reasoning: Show) -> ChatAnswer:
    answer = ChatAnswer()
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                return answer
            _take(answer, data, show, show_reasoning)
    raise RunFailed("the answer broke off: the server or a proxy closed the connection")


def _take(answer: ChatAnswer, data: bytes, show: Show, show_reasoning: Show) -> None:
    try:
        event = json.loads(data)
        if error := event.get("error"):
            raise RunFailed(f"the answer broke off: {error.get('message') or error}")
        if usage := event.get("usage"):
            answer.prompt_tokens = usage["prompt_tokens"]
            answer.generated_tokens = usage["completion_tokens"]
            answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            reasoning, piece = (
                delta.get("reasoning_content") or "",
                choice.get("text") or delta.get("content") or "",
            )
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            answer.reasoning += reasoning
            _write(show_reasoning, reasoning)
            answer.text += piece
            _write(show, piece)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFailed(f"the server sent an event that cannot be read: {data[:200]!r}") from error
