"""The API process from start to exit: sockets, the engine client, both HTTP servers, signals, the exit code.

`mambaserve serve` and local mode call it. It owns the order of events: listen, load, ready, drain, end.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import uvloop

from mamba_edge import process_memory
from mamba_edge.api_keys import KeyFile, KeyFileError
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.errors import ApiError
from mamba_edge.exchange.request_arrivals import LEAVE_SHARE
from mamba_edge.listener import CannotListen, is_loopback, listen, tell_ready, url_of
from mamba_prefix.errors import BadRedisUrl
from mamba_prefix.publisher import Publisher
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_url import url_from
from mamba_server.api.admin import make_admin
from mamba_server.api.app import make_app
from mamba_server.api.drain import Drain
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.engine_link.engine_process import ENGINE_COMMAND
from mamba_server.api.engine_link.engine_state import EngineState
from mamba_server.api.metrics.engine_metrics import EngineMetrics
from mamba_server.api.metrics.engine_spans import export_audits
from mamba_server.api.metrics.prefix_metrics import PrefixMetrics
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.metrics.usage_metrics import UsageMetrics
from mamba_server.api.requests.errors import BadConfiguration, ServeError
from mamba_server.api.serving import Serving
from mamba_server.model.checkpoint import source
from mamba_server.model.checkpoint.errors import ModelError
from mamba_server.wire import EngineStats, Ready
from mamba_settings.engine_settings import EngineSettings
from mamba_telemetry.logs import get_logger, set_up_logs
from mamba_telemetry.registry import make_registry
from mamba_telemetry.trace_metrics import TraceMetrics
from mamba_telemetry.traces import set_up_traces
from mamba_telemetry.tracing import OFF, Tracing
from mamba_text.errors import TextError
from mamba_text.prompt import TextProcessor

log = get_logger(__name__)

Result = TypeVar("Result")
Watch = Callable[[EngineState], None]
WATCH_SECONDS = 0.25
"""Interval between two reports of the progress of loading."""
LAST_PORT = 65_535
LEAVE_MARGIN_SECONDS = 2.0
"""Seconds beyond the time for the peers within which the engine process has to answer."""
EXPORTS_SECONDS = 0.05
"""Interval between two looks at the states that other engines have still to fetch."""
LAST_BYTES_SECONDS = 3
"""Time for connections to close once every answer has been handed over."""


def print_line(line: str) -> None:
    """Write the ready line to standard output: other programs wait for it."""
    tell_ready(line, sys.stdout)


async def in_daemon_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in a daemon thread and return its result.

    Unlike a thread of a pool, a daemon thread does not keep the process from ending: a download may be far
    from done when SIGTERM arrives.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def complete(setter: Callable[..., None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        setter: Callable[..., None] = future.set_result
        value: Any
        try:
            value = work()
        except Exception as error:
            setter, value = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result
            loop.call_soon_threadsafe(complete, setter, value)

    threading.Thread(target=run, daemon=True).start()
    return await future


class Server:
    """Runs the API process of one engine: loads, serves, drains. `announce` receives the ready line."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        announce: Callable[[str], None] = print_line,
        watch: Watch | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        if settings.admin_token_file is None and not is_loopback(settings.admin_host):
            raise BadConfiguration(
                f"admin_host {settings.admin_host} is reachable from other machines: set admin_token_file to "
                "require a token"
            )
        self._settings = settings
        self._announce = announce
        self._watch = watch
        keys, token = settings.api_key_file, settings.admin_token_file
        try:
            self._keys = None if keys is None else KeyFile(keys, "api_key_file")
            self._token = None if token is None else KeyFile(token, "admin_token_file")
        except KeyFileError as error:
            raise BadConfiguration(str(error)) from error
        try:
            name = settings.served_model_name or source.display_name(settings.model)
        except ModelError as error:
            raise BadConfiguration(str(error)) from error
        self._registry = make_registry()
        self._engine_metrics = EngineMetrics(self._registry, name)
        engine = EngineClient(
            command=command,
            silence=settings.engine_silence,
            on_stats=self._on_stats,
            on_ready=self._on_ready,
        )
        self._engine_metrics.health = lambda: (engine.state.phase == "ready", engine.restarts)
        metrics = RequestMetrics(self._registry, name)
        self._serving = Serving(settings, name, engine, metrics, Drain(), tracing=tracing, keys=self._keys)
        if name in settings.lora_paths:
            raise BadConfiguration(
                f"lora: the name {name} is that of the model: give the adapter another one, or set "
                "--served-model-name"
            )
        self._serving.adapters.on_change = self._on_adapters
        TraceMetrics(self._registry, tracing)
        UsageMetrics(self._registry, self._serving.usage)
        try:
            self._redis_url = url_from(settings.redis_url, settings.redis_url_file)
        except BadRedisUrl as error:
            raise BadConfiguration(str(error)) from error
        if settings.redis_url is not None and settings.redis_url_file is not None:
            raise BadConfiguration("set either --redis-url or --redis-url-file, not both")
        self._prefix_metrics = PrefixMetrics(self._registry, name, engine.changes)
        self._serving.on_strategy = self._engine_metrics.on_strategy
        self._signals = 0
        self._signalled = asyncio.Event()
        self._urls = ("", "")
        self._announced = False
        self._directory = Path()
        """Directory of the model, once it is there."""
        self._leave: Callable[[], None] = lambda: None

    async def run(self) -> int:
        """Serve until a signal, and return the exit code. Raises ServeError."""
        settings = self._settings
        admin_port = settings.admin_port
        if admin_port is None:
            admin_port = 0 if settings.port == 0 else settings.port + 1
        if admin_port > LAST_PORT:
            raise ServeError(f"no port is left after {settings.port} for the admin server: set --admin-port")
        try:
            public = listen(settings.host, settings.port)
        except CannotListen as error:
            raise ServeError(f"{error.option}: {error}") from error
        try:
            private = listen(settings.admin_host, admin_port)
        except CannotListen as error:
            public.close()
            option = error.option.replace("--", "--admin-")
            raise ServeError(f"{option}: the admin server {error}") from error
        self._urls = (url_of(public), url_of(private))
        # The name by which gateways discover this engine: the pod's name, or its address.
        engine = os.environ.get("POD_NAME") or urlsplit(self._urls[0]).netloc
        self._serving.engine.changes.engine = engine
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        servers = [
            (HttpServer(app, last_bytes_seconds=LAST_BYTES_SECONDS, limits=settings), listener)
            for app, listener in (
                (make_app(self._serving, self._registry, self._keys), public),
                (make_admin(self._serving, self._token), private),
            )
        ]
        self._leave = servers[0][0].leave
        tasks = [asyncio.create_task(server.serve(sockets=[listener])) for server, listener in servers]
        life = asyncio.create_task(self._engine_life())
        stopping = asyncio.create_task(self._until_drained())
        watching = asyncio.create_task(self._watch_loading())
        publishing = asyncio.create_task(self._publish())
        try:
            await asyncio.wait({life, stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
            return stopping.result() if stopping.done() else 1
        finally:
            # Answer gateways that wait for changes, or the servers would wait for them.
            self._serving.engine.changes.close()
            self._serving.usage.close()
            for server, _ in servers:
                server.should_exit = True
            stopping.cancel()
            await self._serving.grammars.close()
            await self._serving.engine.stop()
            life.cancel()
            for task in (watching, publishing):
                task.cancel()
            await asyncio.gather(*tasks, life, stopping, watching, publishing, return_exceptions=True)
            for listener in (public, private):
                listener.close()

    async def _engine_life(self) -> None:
        """Fetch the model, load its text processor, then keep the engine running. Raises ServeError."""
        settings, engine = self._settings, self._serving.engine
        try:
            directory = await in_daemon_thread(lambda: source.resolve(settings.model, engine.loading))
            engine.loading("tokenizer", 0, 1)
            self._serving.text = await in_daemon_thread(lambda: TextProcessor.load(directory))
            self._serving.text_files = directory
        except (ModelError, TextError) as error:
            failure = ServeError(str(error))
            failure.exit_code = error.exit_code
            raise failure from error
        self._directory = directory
        await engine.run(self._engine_settings(settings.lora))

    def _engine_settings(self, lora: tuple[str, ...]) -> str:
        """Return the settings of an engine process with these adapters, without the address of Redis."""
        changes: dict[str, Any] = {
            "model": str(self._directory), "served_model_name": self._serving.model_name,
            # The engine does not need the Redis URL, and other users see arguments of a process.
            "redis_url": None, "redis_url_file": None,
            "lora": lora, "max_loras": self._settings.lora_places,
        }  # fmt: skip
        return self._settings.model_copy(update=changes).model_dump_json()

    def _on_adapters(self) -> None:
        """Let an engine that starts again load the adapters that are loaded now."""
        loaded = self._serving.adapters.loaded
        self._serving.engine.settings_json = self._engine_settings(
            tuple(f"{adapter.name}={adapter.path}" for adapter in loaded)
        )

    async def _publish(self) -> None:
        """Publish the changes of the prefix cache to Redis, if there is one."""
        if self._redis_url is None:
            return
        # Imported here because the client is large, and nothing else in this process needs it.
        from mamba_prefix.redis_client import make_client
        from mamba_prefix.redis_store import RedisStore

        scope = self._settings.prefix_index_scope or self._serving.model_name
        store = RedisStore(make_client(self._redis_url), RedisKeys(scope))
        publisher = Publisher(self._serving.engine.changes, store)
        self._prefix_metrics.publisher = publisher
        try:
            await publisher.run()
        finally:
            await store.close()

    async def _watch_loading(self) -> None:
        """Report the progress of loading to the `watch` callback until the engine is ready."""
        if self._watch is None:
            return
        while (state := self._serving.engine.state).phase != "ready":
            self._watch(state)
            await asyncio.sleep(WATCH_SECONDS)
        self._watch(state)

    def _on_stats(self, stats: EngineStats) -> None:
        self._engine_metrics.on_stats(stats)
        self._serving.usage.on_costs(stats.costs)
        if stats.audit_spans:
            export_audits(self._serving.tracing, stats.audit_spans)

    def _on_ready(self, ready: Ready) -> None:
        self._engine_metrics.on_ready(ready)
        self._serving.adapters.start(ready.adapters)
        if self._signals:
            return  # the server is about to end, and readers of the ready line would send requests
        logged = ("overlap", "threads", "kernels", "decodeSteps", "kernelsLeftOut")
        fields = {name: ready.plan[name] for name in logged if name in ready.plan}
        url, admin = self._urls
        log.info("ready", url=url, admin=admin, max_model_len=ready.max_model_len, **fields)
        if not self._announced:
            self._announced = True
            self._announce(f"mambaserve: ready: {self._serving.model_name} at {url}/v1 (admin {admin})")

    def _on_signal(self) -> None:
        self._signals += 1
        self._signalled.set()

    async def _until_drained(self) -> int:
        """Wait for a signal, then for the requests, a second signal or the deadline; return the exit code."""
        await self._signalled.wait()
        self._signalled.clear()
        drain, settings = self._serving.drain, self._settings
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.drain_timeout
        if not (self._announced or drain.under_way):
            # No request was ever accepted, so there is nothing to finish and no client to turn away.
            log.info("stopped_while_loading", stage=self._serving.engine.state.stage)
            return 0
        if settings.drain_quiet and self._serving.engine.state.phase == "ready":
            log.info("leaving", under_way=drain.under_way, quiet=settings.drain_quiet)
            self._leave()
            quiet = asyncio.create_task(
                drain.arrivals.none_for(settings.drain_quiet, lambda: drain.under_way > 0)
            )
            second_signal = asyncio.create_task(self._signalled.wait())
            quiet_limit = settings.drain_timeout * LEAVE_SHARE
            await asyncio.wait(
                {quiet, second_signal}, timeout=quiet_limit, return_when=asyncio.FIRST_COMPLETED
            )
            quiet.cancel()
            second_signal.cancel()
        remaining = max(0.0, deadline - loop.time())
        drain.draining = True
        log.info("draining", under_way=drain.under_way, deadline=remaining)
        finished = asyncio.create_task(self._until_finished(remaining))
        next_signal = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({finished, next_signal}, return_when=asyncio.FIRST_COMPLETED)
        clean = finished.done() and finished.result()
        for task in (finished, next_signal):
            task.cancel()
        await asyncio.gather(finished, next_signal, return_exceptions=True)
        if not clean:
            log.warning("drain_cut_short", under_way=drain.under_way, second_signal=self._signals > 1)
        return 0 if clean else 1

    async def _until_finished(self, seconds: float) -> bool:
        """Wait `seconds` for running requests, and for engines that have still to fetch states of this one.

        Return whether all requests have finished. States are kept for one lease at most: an engine that does
        not fetch in time computes the prompt.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        finished = await self._serving.drain.wait_until_idle(seconds)
        if finished:
            await self._leave_states(deadline - loop.time())
        deadline = min(deadline, loop.time() + self._settings.transfer_lease)
        while loop.time() < deadline and self._engine_metrics.gauge("transfer_exported"):  # noqa: ASYNC110 - the number comes twice a second
            await asyncio.sleep(EXPORTS_SECONDS)
        return finished

    async def _leave_states(self, seconds: float) -> None:
        """Let the peers fetch the most valuable states, for `seconds` and for `leave_seconds` at most."""
        settings, engine = self._settings, self._serving.engine
        seconds = min(seconds, settings.leave_seconds)
        if settings.warm_peers is None or seconds <= 0 or engine.state.phase != "ready":
            return
        try:
            reply = await engine.admin("leave", {"seconds": seconds}, timeout=seconds + LEAVE_MARGIN_SECONDS)
        except ApiError as error:
            log.warning("states_lost", reason=str(error))
        else:
            log.info("states_left", **reply.body)


def serve(
    settings: EngineSettings, *, command: Sequence[str] = ENGINE_COMMAND, watch: Watch | None = None
) -> int:
    """Run one engine in the foreground and return the exit code. `watch` receives the progress of loading.

    Raises ServeError, whose message says what to do.
    """

    def announce(line: str) -> None:
        process_memory.freeze()
        print_line(line)

    async def main() -> int:
        server = Server(settings, command=command, announce=announce, watch=watch, tracing=tracing)
        return await process_memory.with_trimming(server.run())

    set_up_logs(level=settings.log_level, process="api")
    # uvicorn's own lines about starts and stops repeat ours; its warnings and errors are kept.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tracing = set_up_traces(settings, process="mambaserve")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    finally:
        tracing.close()
