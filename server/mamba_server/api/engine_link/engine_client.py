"""`EngineClient`: starts, supervises and restarts the engine process, and routes its messages to requests.

A server has one. When the engine process ends, every open request ends with an error. The client knows
nothing of HTTP or text.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mamba_edge.errors import NotReady
from mamba_prefix.change_log import ChangeLog
from mamba_server import wire
from mamba_server.api.engine_link.engine_process import ENGINE_COMMAND, EngineProcess
from mamba_server.api.engine_link.engine_state import (
    MAX_FAILED_STARTS,
    STABLE_SECONDS,
    EngineState,
    Phase,
    backoff,
    death_reason,
)
from mamba_server.api.engine_link.inbox import Inbox
from mamba_server.api.requests.errors import AdminTimeout, EngineLost, EngineRefused, EngineStartFailed
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

LAST_MESSAGES_SECONDS = 0.5
"""Time for the last messages of an engine that has ended to arrive."""
MAX_UNREAD = 32
"""Maximum number of requests that were sent to the engine and that the engine has not read. It is half of the
number that the engine reads between two steps, so that the engine reads a request and its abort together."""
FATAL_EXIT_SECONDS = 5.0
"""Time for an engine that sent `Fatal` to exit."""


class EngineClient:
    """Starts one engine process, sends it requests, and routes its results to their inboxes.

    A process that ends is started again. `on_stats` receives each EngineStats, `on_ready` each Ready. A ready
    engine that sends nothing for `silence` seconds counts as hung, and is killed.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        silence: float = 120.0,
        on_stats: Callable[[wire.EngineStats], None] = lambda _: None,
        on_ready: Callable[[wire.Ready], None] = lambda _: None,
    ) -> None:
        self._command = command
        self._silence = silence
        self._on_stats = on_stats
        self._on_ready = on_ready
        self._process: EngineProcess | None = None
        self._inboxes: dict[str, Inbox] = {}
        self._unstarted: set[str] = set()
        self._unread: dict[str, bool] = {}
        """Requests that were sent and that the engine has not read yet; true = closed since."""
        self._held: dict[str, wire.AddRequest] = {}
        """Requests that are sent when the engine has read others; closing one costs the engine nothing."""
        self._calls: dict[int, asyncio.Future[wire.AdminReply]] = {}
        self._call_ids = itertools.count(1)
        self._message_received = False
        self._fatal: wire.Fatal | None = None
        self._stopping = asyncio.Event()
        self.settings_json = ""
        """Settings of the next engine process."""
        self.ready: wire.Ready | None = None
        """The last Ready message; kept over a restart, which does not change limits and plan."""
        self.state = EngineState("loading", "the engine process is starting", "start", 0, 1)
        self.stats: wire.EngineStats | None = None
        """The last statistics of the running engine process; None before the first."""
        self.restarts = 0
        self.changes = ChangeLog()
        """Log of changes of the engine's prefix cache, for gateways."""

    # Requests.

    @property
    def waiting(self) -> int:
        """Number of requests without output so far, and of closed ones that the engine has not read yet."""
        return len(self._unstarted) + sum(self._unread.values())

    @property
    def open(self) -> int:
        """Number of open requests, waiting ones included."""
        return len(self._inboxes)

    def require_ready(self) -> wire.Ready:
        """Return the engine's last Ready message, with its limits. Raises NotReady if it is not ready now."""
        if self.state.phase != "ready" or self.ready is None:
            raise NotReady(f"the model is not ready: {self.state.reason}")
        return self.ready

    def submit(self, requests: Iterable[wire.AddRequest], inbox: Inbox) -> None:
        """Hand requests to the engine; all their deltas go to one inbox. Raises NotReady."""
        self.require_ready()
        for request in requests:
            self._inboxes[request.request_id] = inbox
            self._unstarted.add(request.request_id)
            self._held[request.request_id] = request
        self._send_held()

    def stop_sequence(self, request_id: str, index: int, keep: int) -> None:
        """Ask the engine to end a sequence after its first `keep` tokens."""
        self._send(wire.StopSequence(request_id, index, keep))

    def close(self, request_id: str, *, abort: bool) -> None:
        """Forget a request. With `abort` the engine frees the memory that it holds for the request."""
        open_until_now = self._inboxes.pop(request_id, None) is not None
        self._unstarted.discard(request_id)
        if self._held.pop(request_id, None) is not None:
            return
        if request_id in self._unread:
            self._unread[request_id] = True
        if abort and open_until_now:
            self._send(wire.AbortRequest(request_id))

    def _send_held(self) -> None:
        while self._held and len(self._unread) < MAX_UNREAD:
            request_id = next(iter(self._held))
            self._unread[request_id] = False
            self._send(self._held.pop(request_id))

    def _mark_read(self, request_ids: Iterable[str]) -> None:
        if not self._unread:
            return
        for request_id in request_ids:
            self._unread.pop(request_id, None)
        self._send_held()

    async def admin(self, verb: str, body: dict[str, Any], timeout: float = 30.0) -> wire.AdminReply:
        """Run the admin operation `verb` in the engine, for at most `timeout` seconds; return the reply.

        Raises NotReady, EngineLost or AdminTimeout.
        """
        self.require_ready()
        call_id = next(self._call_ids)
        future: asyncio.Future[wire.AdminReply] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(wire.AdminCall(call_id, verb, body))
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError as error:
            raise AdminTimeout(f"the engine did not answer '{verb}' within {timeout:g} s") from error
        finally:
            self._calls.pop(call_id, None)

    def _send(self, message: wire.ToEngine) -> None:
        if self._process is not None:
            self._process.send(message)

    # Supervision.

    def loading(self, stage: str, done: int, total: int) -> None:
        """Report the progress of work before the engine is ready; may be called from another thread."""
        self.state = EngineState(self._unready_phase, f"loading: {stage}", stage, done, total)

    async def run(self, settings_json: str) -> None:
        """Keep an engine running until `stop`. Raises EngineStartFailed if it never becomes ready.

        `settings_json`: settings of the engine process; later starts use the attribute of that name.
        """
        self.settings_json = settings_json
        deaths = 0
        while True:
            started = time.monotonic()
            exit_code = await self._run_once(self.settings_json)
            if self._stopping.is_set():
                return
            reason = death_reason(exit_code) if self._fatal is None else self._fatal.message
            deaths = 1 if time.monotonic() - started > STABLE_SECONDS else deaths + 1
            if self.ready is None and self._fatal is not None:
                self.state = EngineState("failed", reason)
                raise EngineStartFailed(reason, self._fatal.exit_code)
            if self.ready is None and deaths >= MAX_FAILED_STARTS:
                self.state = EngineState("failed", reason)
                raise EngineStartFailed(f"{reason}; {deaths} starts in a row failed", 1)
            pause = backoff(deaths, random.random())
            self.restarts += 1
            log.error("engine_ended", reason=reason, deaths=deaths, restart_in=round(pause, 2))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return

    async def _run_once(self, settings_json: str) -> int | None:
        """Run one engine process to its end. Return its exit code; None if it hung and was killed.

        Raises EngineStartFailed if the process cannot be started.
        """
        self._fatal = None
        try:
            process = await EngineProcess.start(settings_json, self._command)
        except OSError as failure:
            raise EngineStartFailed(f"the engine process cannot be started: {failure}", 1) from failure
        self._process = process
        if self._stopping.is_set():  # `stop` was called during the start, when there was no process to stop
            process.kill()
        log.info("engine_started", engine_pid=process.pid)
        self.loading("importing torch", 0, 1)  # the engine cannot report this: it has no sockets yet
        reader = asyncio.create_task(self._read(process))
        waiter = asyncio.create_task(process.wait())
        watcher = asyncio.create_task(self._watch())
        hung = False
        try:
            await asyncio.wait({reader, waiter, watcher}, return_when=asyncio.FIRST_COMPLETED)
            hung = watcher.done() and not waiter.done()
            if reader.done() and (broken := reader.exception()) is not None:
                log.error("engine_message_unreadable", error=str(broken))
            if self._fatal_message() is not None:
                await asyncio.wait({waiter}, timeout=FATAL_EXIT_SECONDS)
            process.kill()
            exit_code = await waiter
            if not reader.done():
                # Its last messages (a Fatal, the end of a request) may still be in the pipe.
                await asyncio.wait({reader}, timeout=LAST_MESSAGES_SECONDS)
        finally:
            for task in (reader, waiter, watcher):
                task.cancel()
            await asyncio.gather(reader, waiter, watcher, return_exceptions=True)
            process.kill()
            await process.wait()
            self._process = None
            process.close()
            self._fail_open_requests(death_reason(None if hung else process.exit_code))
        return None if hung else exit_code

    def _fatal_message(self) -> wire.Fatal | None:
        return self._fatal

    def _fail_open_requests(self, reason: str) -> None:
        if self._fatal is not None:
            reason = self._fatal.message
        self.state = EngineState(self._unready_phase, reason)
        self.stats = None
        self.changes.lose()
        lost = EngineLost(f"{reason}; it is being restarted, try again")
        for inbox in self._inboxes.values():
            inbox.fail(lost)
        self._inboxes.clear()
        self._unstarted.clear()
        self._unread.clear()
        self._held.clear()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(lost)
        self._calls.clear()

    async def _read(self, process: EngineProcess) -> None:
        """Read messages of the engine process and pass each to its request, until the process sends Fatal.

        Raises msgspec.DecodeError for a message that is not of the protocol.
        """
        while self._fatal is None:
            message = await process.receive()
            self._message_received = True
            self._route(message)
            if isinstance(message, wire.Outputs) and any(delta.prompt_logprobs for delta in message.deltas):
                # Large messages that have arrived would otherwise be read without a pause.
                await asyncio.sleep(0)

    async def _watch(self) -> None:
        """Return when a ready engine has sent nothing for `silence` seconds.

        Counts its own wake-ups rather than time, so that a stall of this process's event loop does not count.
        """
        silent_seconds = 0.0
        tick = min(1.0, self._silence / 4)
        while silent_seconds < self._silence:
            await asyncio.sleep(tick)
            silent_seconds = (
                0.0 if self._message_received or self.state.phase != "ready" else silent_seconds + tick
            )
            self._message_received = False

    def _route(self, message: wire.FromEngine) -> None:
        match message:
            case wire.Taken(request_ids=request_ids):
                self._mark_read(request_ids)
            case wire.Outputs(deltas=deltas):
                self._mark_read(delta.request_id for delta in deltas)
                for delta in deltas:
                    if (inbox := self._inboxes.get(delta.request_id)) is not None:
                        self._unstarted.discard(delta.request_id)
                        inbox.put(delta)
            case wire.EngineStats():
                self.stats = message
                self._on_stats(message)
            case wire.PrefixChanges():
                self.changes.take(
                    message.epoch, cleared=message.cleared, gained=message.gained, lost=message.lost,
                    pages_gained=message.pages_gained, pages_lost=message.pages_lost,
                )  # fmt: skip
            case wire.RequestRejected(request_id=request_id):
                self._mark_read((request_id,))
                self._unstarted.discard(request_id)
                if (inbox := self._inboxes.pop(request_id, None)) is not None:
                    inbox.fail(EngineRefused(message))
            case wire.AdminReply(call_id=call_id):
                if (call := self._calls.get(call_id)) is not None and not call.done():
                    call.set_result(message)
            case wire.Progress(stage=stage, done=done, total=total):
                self.loading(stage, done, total)
            case wire.Ready():
                self.ready = message
                self.changes.start(message.fingerprint, message.page_size)
                self.state = EngineState("ready", "the model is loaded")
                self._on_ready(message)
            case wire.Fatal():
                self._fatal = message

    @property
    def _unready_phase(self) -> Phase:
        return "loading" if self.ready is None else "restarting"

    async def stop(self, grace: float = 5.0) -> None:
        """End the engine process, so that `run` returns.

        A ready engine is asked to end, and killed after `grace` seconds; another one is killed at once.
        """
        self._stopping.set()
        process = self._process
        if process is None:
            return
        if self.state.phase != "ready":
            process.kill()
            return
        process.send(wire.Shutdown())
        try:
            async with asyncio.timeout(grace):
                await process.wait()
        except TimeoutError:
            log.warning("engine_killed", reason=f"did not end within {grace:g} s")
            process.kill()
