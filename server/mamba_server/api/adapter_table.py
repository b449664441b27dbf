"""`AdapterTable`: names of the adapters that requests may choose, and which requests still use them.

A server has one table. Requests hold their adapter until their answer has ended, so that a replaced or
unloaded adapter leaves the engine only after its last request.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from mamba_edge.errors import ApiError, InvalidRequest
from mamba_prefix.adapter_salt import is_adapted
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.requests.errors import AdminRefused
from mamba_server.wire import LoadedAdapter
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

LOAD_SECONDS = 300.0
"""Longest time that an engine may take to read and install an adapter."""
UNLOAD_PAUSE_SECONDS = 1.0
"""Time until an engine that still uses an adapter is asked again to unload it."""


class NoSuchAdapter(ApiError):
    """No adapter with the name in the request is loaded."""

    status, kind, code = 404, "invalid_request_error", "not_found"


def own_salt(cache_salt: str | None) -> str:
    """Return the salt that a client has chosen; "" = none.

    Raises InvalidRequest for a salt in the form that is reserved for adapters.
    """
    if cache_salt and is_adapted(cache_salt):
        raise InvalidRequest(
            "cache_salt: salts of this form are reserved for adapters; choose another one", param="cache_salt"
        )
    return cache_salt or ""


class AdapterTable:
    """Names of the adapters that one engine has loaded, with the requests that use each of them.

    `on_change` is called after each change of the names, before the next request.
    """

    def __init__(self, engine: EngineClient, on_change: Callable[[], None] = lambda: None) -> None:
        self._engine, self.on_change = engine, on_change
        self._by_name: dict[str, LoadedAdapter] = {}
        self._users: Counter[str] = Counter()
        """Number of open requests by fingerprint."""
        self._ended = asyncio.Event()
        self._changing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self.revision = 0
        """Number that rises with each change of the names or of their adapters."""

    def start(self, adapters: tuple[LoadedAdapter, ...]) -> None:
        """Take over the adapters that an engine has loaded at its start."""
        self._by_name = {adapter.name: adapter for adapter in adapters}
        self.revision += 1

    @property
    def loaded(self) -> list[LoadedAdapter]:
        """Adapters that requests may choose."""
        return [*self._by_name.values()]

    def get(self, name: str) -> LoadedAdapter | None:
        """Return the adapter with the name `name`; None if there is none."""
        return self._by_name.get(name)

    @contextlib.contextmanager
    def held(self, fingerprint: str) -> Iterator[None]:
        """Keep the adapter with this fingerprint loaded while the context is open.

        "" stands for no adapter.
        """
        self._users[fingerprint] += 1
        try:
            yield
        finally:
            self._users[fingerprint] -= 1
            if not self._users[fingerprint]:
                del self._users[fingerprint]
                self._ended.set()

    async def load(self, name: str, path: str) -> LoadedAdapter:
        """Load the adapter at `path` under `name`, in place of an earlier one with this name; return it.

        Requests that have begun end with the earlier one. Raises AdminRefused, NotReady, EngineLost,
        AdminTimeout.
        """
        async with self._changing:
            fingerprints = {adapter.fingerprint for adapter in self._by_name.values()} | {*self._users}
            body = {"path": path, "known": sorted(fingerprints)}
            reply = await self._engine.admin("adapter_load", body, LOAD_SECONDS)
            if reply.status >= 400:
                raise AdminRefused(reply)
            adapter = LoadedAdapter(name, path, str(reply.body["fingerprint"]), int(reply.body["rank"]))
            earlier = self._by_name.get(name)
            self._by_name[name] = adapter
            self._changed()
        log.info("adapter_loaded", name=name, fingerprint=adapter.fingerprint, rank=adapter.rank)
        if earlier is not None:
            self._retire(earlier.fingerprint)
        return adapter

    async def unload(self, name: str) -> None:
        """Let no further request use the adapter, and unload it after the last request that uses it.

        Raises NoSuchAdapter.
        """
        async with self._changing:
            adapter = self._by_name.pop(name, None)
            if adapter is None:
                names = ", ".join(self._by_name) or "none"
                raise NoSuchAdapter(f"no adapter {name[:200]!r} is loaded; loaded are: {names}")
            self._changed()
        log.info("adapter_unloaded", name=name, fingerprint=adapter.fingerprint)
        self._retire(adapter.fingerprint)

    def _changed(self) -> None:
        self.revision += 1
        self.on_change()

    def _retire(self, fingerprint: str) -> None:
        task = asyncio.create_task(self._unload_unused(fingerprint))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _unload_unused(self, fingerprint: str) -> None:
        """Unload an adapter from the engine once no request uses it, unless it has a name again by then."""
        while True:
            while self._users[fingerprint]:
                self._ended.clear()
                await self._ended.wait()
            async with self._changing:
                if self._users[fingerprint]:
                    continue
                if any(adapter.fingerprint == fingerprint for adapter in self._by_name.values()):
                    return
                try:
                    reply = await self._engine.admin("adapter_unload", {"fingerprint": fingerprint})
                except ApiError:
                    return  # an engine that starts again loads the adapters of the names alone
            if reply.status != 409:
                return
            # The engine has not yet read that the last request was aborted.
            await asyncio.sleep(UNLOAD_PAUSE_SECONDS)
