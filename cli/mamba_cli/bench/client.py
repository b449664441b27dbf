"""`LoadClient`: sends completion requests and measures each as a sample.

A failure of the server or the network raises no exception: the sample then names the kind of error.
"""

import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.samples import Sample


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _EventChoice(msgspec.Struct):
    text: str = ""
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_EventChoice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class _StreamReader:
    # The events of one answer that have arrived, with their times.
    first: float | None = None
    last: float = 0.0
    gaps: tuple[float, ...] = ()
    events: int = 0
    usage: _Usage | None = None
    finished: bool = False
    done: bool = False
    error: str | None = None

    def take(self, line: bytes, now: float) -> None:
        if not line.startswith(b"data:"):
            return
        if (data := line[5:].strip()) == b"[DONE]":
            self.done = True
        else:
            event = _decoder.decode(data)
            if event.error is not None:
                self.error = f"stream: {event.error.get('code') or event.error.get('message')}"
            self.usage = event.usage or self.usage
            self._choices(event.choices, now)

    def _choices(self, choices: list[_EventChoice], now: float) -> None:
        self.finished = self.finished or any(choice.finish_reason for choice in choices)
        # Text can lag behind tokens, as for half a character, so token ids count where the server sends them.
        if not any(choice.token_ids or choice.text or _delta_text(choice) for choice in choices):
            return
        if self.first is None:
            self.first = now
        else:
            self.gaps += (now - self.last,)
        self.last = now
        self.events += 1


class LoadClient:
    """Sends the requests of a load to one model at one server, and measures them.

    It sends messages to the chat API, and token ids to completions. A request takes at most `timeout`
    seconds; `extra` are more fields of each body.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._session, self._url, self._model = session, url.rstrip("/").removesuffix("/v1"), model
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=10)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._extra = extra or {}

    async def send(self, prompt: LoadPrompt, start: float, late: float = 0.0) -> Sample:
        """Send one request; return its sample, in which times count from `start`, in monotonic seconds.

        `late` is the delay of the request after its scheduled time, in seconds.
        """
        chat = prompt.messages is not None
        body = msgspec.json.encode(
            {
                "model": self._model,
                **({"messages": prompt.messages} if chat else {"prompt": prompt.token_ids}),
                "max_tokens": prompt.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
                **self._extra,
            }
        )
        sent, reading = time.monotonic(), _StreamReader()
        try:
            error = await self._read("chat/completions" if chat else "completions", body, reading)
        except TimeoutError:
            error = "timeout"
        except aiohttp.ClientConnectorError:
            error = "connect"
        except (aiohttp.ClientError, ConnectionError) as broken:
            error = f"connection: {type(broken).__name__}"
        except msgspec.MsgspecError:
            error = "an event without valid JSON"
        end, usage = time.monotonic(), reading.usage or _Usage()
        details = usage.prompt_tokens_details
        return Sample(
            sent=sent - start,
            end=(reading.last if error is None and reading.first is not None else end) - start,
            late=late,
            ttft=None if reading.first is None else reading.first - sent,
            itl=reading.gaps,
            prompt_tokens=usage.prompt_tokens or len(prompt.token_ids),
            output_tokens=usage.completion_tokens or reading.events,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            error=error,
        )

    async def _read(self, path: str, body: bytes, reading: _StreamReader) -> str | None:
        url = f"{self._url}/v1/{path}"
        async with self._session.post(
            url, data=body, headers=self._headers, timeout=self._timeout
        ) as response:
            if response.status != 200:
                return f"{response.status} {_code(await response.read())}".strip()
            rest = b""
            async for chunk in response.content.iter_any():
                now = time.monotonic()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    reading.take(line.rstrip(b"\r"), now)
        if reading.error:
            return reading.error
        if not reading.done or not reading.finished:
            return "stream: ended early"
        return None if reading.first is not None else "stream: no token"


def _delta_text(choice: _EventChoice) -> str:
    return (choice.delta.content or choice.delta.reasoning_content or "") if choice.delta else ""


def _code(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=dict[str, Any]).get("error")
    except msgspec.MsgspecError:
        return ""
    return str(error.get("code") or error.get("type") or "") if isinstance(error, dict) else ""
