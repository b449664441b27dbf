"""An API server of which some writes fail, and how writes can fail; the rest reaches the real one."""

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

from mamba_api import names
from mamba_kube.api_server import JSON, ApiServer
from mamba_kube.errors import ApiError
from mamba_operator.objects.manifest import Key


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


HASH = re.compile(r"-[0-9a-f]{5,10}\b")
"""Part of a child's name that depends on the owner and on what is in the child."""


class StruckServer(ApiServer):
    """Strikes each write of `blows` once; `meanwhile` happens just before that."""

    def __init__(
        self,
        server: ApiServer,
        owner: Key,
        blows: Mapping[str, Blow],
        meanwhile: Callable[[], Awaitable[None]],
    ) -> None:
        """Start. owner: object whose children are written; blows: how writes fail, by their names."""
        self._server, self._owner, self._blows, self._meanwhile = server, owner, blows, meanwhile
        self.struck: list[str] = []
        """Names of the writes that were struck."""
        self.written: list[str] = []
        """Method and path of each write, this one included."""
        self.names: list[str] = []
        """Names of the same writes: what is done to which object of the owner, and for which time.

        Owners with the same specification have the same names, also after some of their writes have failed.
        """

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
        name = self._name(method, path, body)
        self.names.append(name)
        if name not in self._blows:
            return await carried_out()
        self.struck.append(name)
        await self._meanwhile()
        match self._blows[name]:
            case Blow.ERROR:
                raise ApiError(f"{method} {path}: the server is shutting down", status=503)
            case Blow.CONFLICT:
                if method == "POST":
                    await carried_out()
                raise ApiError(f"{method} {path}: the object has been modified", status=409)
            case Blow.NO_ANSWER:
                await carried_out()
                raise ApiError(f"{method} {path}: no answer within 30 s")
            case Blow.KILLED:
                await carried_out()
                raise Killed

    def _name(self, method: str, path: str, body: Any) -> str:
        """Return the name of the write that is about to be recorded."""
        target = f"{path}/{body['metadata']['name']}" if method == "POST" else path
        target = target.replace(f"/{self._owner.namespace}/", "/").replace(f"/{self._owner.name}", "/NAME")
        write = HASH.sub("", f"{method} {target}")
        return f"{write} {sum(name.rpartition(' ')[0] == write for name in self.names)}"
