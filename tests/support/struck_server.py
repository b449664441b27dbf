"""An API server of which one write fails, and how writes can fail; the rest reaches the real one."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

from mamba_api import names
from mamba_kube.api_server import JSON, ApiServer
from mamba_kube.errors import ApiError


class Blow(StrEnum):
    """Ways in which a write fails."""

    ERROR = "error"
    """The write is not carried out."""
    CONFLICT = "conflict"
    """Somebody else wrote before: what was to be made is there, what was to be changed is another."""
    NO_ANSWER = "no answer"
    """The write is carried out, but its answer is lost."""
    KILLED = "killed"
    """The write is carried out, and the operator is killed."""


class Killed(BaseException):
    """The operator's end: nothing of it runs after this."""


class StruckServer(ApiServer):
    """Strikes the write of number `at`, from 0, once; `meanwhile` happens just before that."""

    def __init__(
        self, server: ApiServer, at: int, blow: Blow, meanwhile: Callable[[], Awaitable[None]]
    ) -> None:
        self._server, self._left, self._blow, self._meanwhile = server, at, blow, meanwhile
        self.struck = ""
        """The write that was struck; empty as long as none was."""
        self.written: list[str] = []
        """Method and path of each write, this one included."""

    @property
    def writes(self) -> int:
        return len(self.written)

    def children_written(self) -> list[str]:
        """Return the writes of all objects but the owner, creations included."""
        return [one for one in self.written if f"/{names.PLURAL}/" not in one]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """Send the request like the real client, except for one write."""

        async def carried_out() -> dict[str, Any]:
            return await self._server.request(
                method, path, query=query, body=body, content_type=content_type, accept=accept
            )

        if method == "GET":
            return await carried_out()
        self.written.append(f"{method} {path}")
        self._left -= 1
        if self._left != -1:
            return await carried_out()
        self.struck = f"{method} {path}"
        await self._meanwhile()
        match self._blow:
            case Blow.ERROR:
                raise ApiError(f"{self.struck}: the server is shutting down", status=503)
            case Blow.CONFLICT:
                if method == "POST":
                    await carried_out()
                raise ApiError(f"{self.struck}: the object has been modified", status=409)
            case Blow.NO_ANSWER:
                await carried_out()
                raise ApiError(f"{self.struck}: no answer within 30 s")
            case Blow.KILLED:
                await carried_out()
                raise Killed
