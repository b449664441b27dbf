"""An API server by script: each request gets the next answer, and what was asked is kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from mamba_kube.api_server import ApiServer


class Answer:
    """A response: status, body in chunks, and perhaps silence or an error at its end."""

    def __init__(self, status: int = 200, *chunks: bytes, hold: bool = False, error: Exception | None = None):
        self.status, self.headers = status, {"Retry-After": "3"}
        self.content = self
        self.closed = False
        self._chunks, self._hold, self._error = chunks, hold, error

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._error is not None:
            raise self._error
        if self._hold:
            await asyncio.Event().wait()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.iter_any()])

    def close(self) -> None:
        self.closed = True


class ApiScript(ApiServer):
    """An `ApiServer` below which there is no network; after its last answer every request waits for ever."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.timeout = 30.0
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.given: list[Answer] = []

    async def open(self, method: str, path: str, **more: Any) -> Any:
        self.requests.append({"method": method, "path": path, **more})
        self.times.append(asyncio.get_running_loop().time())
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.given.append(answer)
        return answer


def item(name: str, version: str = "1", **more: Any) -> dict[str, Any]:
    """Return an object as the API server sends it."""
    return {"metadata": {"name": name, "resourceVersion": version}, **more}


def listed(version: str, *items: dict[str, Any]) -> Answer:
    """Return the answer to a list."""
    body = {"metadata": {"resourceVersion": version}, "items": list(items)}
    return Answer(200, json.dumps(body).encode())


def line(kind: str, thing: dict[str, Any]) -> bytes:
    """Return one event of a watch."""
    return json.dumps({"type": kind, "object": thing}, ensure_ascii=False).encode() + b"\n"


def watched(*lines: bytes, hold: bool = False, chunks: Iterable[bytes] | None = None) -> Answer:
    """Return the answer to a watch; `hold`: the connection stays open."""
    return Answer(200, *(lines if chunks is None else chunks), hold=hold)
