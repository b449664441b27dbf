"""`LocalSession`: runs units until they are stopped, performs the supervisor's actions and shows progress.

One loop takes events from one queue; all other tasks (processes, probes, file watch, demonstration, signals)
only put events into it. Called by `mambaserve up`.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from rich.console import Console

from mamba_cli.errors import CliError
from mamba_cli.local import demo
from mamba_cli.local.documents import STDIN
from mamba_cli.local.edits import FileStamp, MissingFiles, changed, settled
from mamba_cli.local.loading.loading_view import LoadingView
from mamba_cli.local.loading.readiness import engine_readiness, gateway_ready, takes_chats
from mamba_cli.local.processes import Processes
from mamba_cli.local.supervisor import (
    Action,
    Child,
    ChildExited,
    ChildReady,
    DrainRequested,
    Event,
    KillChild,
    RestartPolicy,
    ShowMessage,
    StartChild,
    SupervisorState,
    TerminateChild,
    Tick,
    step,
    wake_at,
)
from mamba_cli.local.unit import ENGINE_RANK, GATEWAY_RANK, Command, LocalEngine, Unit

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a session."""
OnEdit = Callable[[aiohttp.ClientSession], Awaitable[tuple[list[str], list[Unit]]]]
"""Function that is called when a watched file has changed. It returns lines to show, and the units with the
settings of their next start."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of one session of `up`. Times are in seconds."""

    once: bool = False
    demo: bool = False
    logs: Path = Path()
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    probe_interval: float = 0.25
    watch_interval: float = 1.0


class LocalSession:
    """Runs engines and gateways as children, restarts those that die, and drains them at the end."""

    def __init__(
        self, units: list[Unit], options: SessionOptions, console: Console, on_edit: OnEdit | None = None
    ) -> None:
        self._units = units
        self._options = options
        self._view = LoadingView(console)
        self._console = console
        self._on_edit = on_edit
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._processes = Processes(options.logs, self._put_exit)
        self._commands = _commands(units)
        children = [Child(engine.name, ENGINE_RANK) for unit in units for engine in unit.engines]
        children += [Child(name, GATEWAY_RANK) for name in dict.fromkeys(unit.gateway for unit in units)]
        self._state = SupervisorState(tuple(children))
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: set[str] = set()
        """Names of the children that have been ready, so that each recovery is reported."""
        self._without_chat: set[str] = set()
        """Names of the units whose models have no chat template."""
        self._logs_full = False
        """Whether the disk of the logs was full at the last death of a child, so that it is reported once."""

    async def run(self) -> int:
        """Run until drained; return 0 after a requested end, else the exit code of the failure."""
        loop = asyncio.get_running_loop()
        # Whoever started this process with `nohup` wants it to survive the terminal.
        handled = [each for each in _ENDING if signal.getsignal(each) != signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, self._stop)
        async with aiohttp.ClientSession() as http:
            self._http = http
            self._view.print_line(f"logs: {self._options.logs}", style="dim")
            self._task(self._after_ready(http))
            if self._on_edit is not None:
                self._task(self._watch(http, self._on_edit))
            try:
                while not self._state.done:
                    await self._handle(await self._next_event())
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._processes.close()
                self._view.close()
                for number in handled:
                    loop.remove_signal_handler(number)
        return self._state.exit_code or 0

    async def _next_event(self) -> Event:
        wake = wake_at(self._state)
        now = self._now()
        if wake is None:
            return await self._events.get()
        try:
            # `asyncio.wait_for` of Python 3.11 may lose a cancellation that coincides with the event.
            async with asyncio.timeout(max(0.0, wake - now)):
                return await self._events.get()
        except TimeoutError:
            return Tick(max(self._now(), wake))

    async def _handle(self, event: Event) -> None:
        self._state, actions = step(self._state, event, self._options.restart_policy)
        for action in actions:
            await self._perform(action)

    async def _perform(self, action: Action) -> None:
        match action:
            case StartChild(name):
                await self._processes.start(name, self._commands[name])
                if name in self._ready:
                    self._ready.discard(name)
                    self._task(self._until_ready_again(name))
            case TerminateChild(name):
                self._processes.send(name, signal.SIGTERM)
            case KillChild(name):
                self._processes.send(name, signal.SIGKILL)
            case ShowMessage(text, name, bad):
                self._view.print_line(text, style="yellow" if bad else "")
                if bad:
                    for line in self._processes.tail(name):
                        self._view.print_line(f"  | {line}", style="dim")
                    was_full, self._logs_full = self._logs_full, self._processes.full(name)
                    if self._logs_full and not was_full:
                        self._view.print_line(
                            f"  no space left for logs in {self._options.logs}", style="red"
                        )
                    self._view.print_line(f"  full log: {self._processes.log(name)}", style="dim")

    async def _after_ready(self, http: aiohttp.ClientSession) -> None:
        """Wait for all units, announce them and demonstrate; then drain if the options ask for no more."""
        try:
            await asyncio.gather(*(self._until_ready(http, unit) for unit in self._units))
            for unit in self._units:
                await self._announce(http, unit)
            if self._options.demo:
                for unit in self._units:
                    await self._demonstrate(http, unit)
            if self._options.once or (self._options.demo and not self._console.is_terminal):
                self._events.put_nowait(DrainRequested(self._now()))
            elif self._console.is_terminal:
                self._view.print_line("Ctrl-C drains and ends.", style="dim")
        except CliError as error:
            self._view.print_line(f"error: {error}", style="red")
            self._events.put_nowait(DrainRequested(self._now(), exit_code=error.exit_code))

    async def _until_ready(self, http: aiohttp.ClientSession, unit: Unit) -> None:
        await asyncio.gather(*(self._until_engine_ready(http, unit, engine) for engine in unit.engines))
        while True:
            if await self._gateway_ready(http, unit):
                self._mark_ready(unit.gateway)
                break
            await asyncio.sleep(self._options.probe_interval)
        for engine in unit.engines:
            self._view.finish(_shown_name(unit, engine))
            self._task(self._report_unready(engine))

    async def _until_engine_ready(self, http: aiohttp.ClientSession, unit: Unit, engine: LocalEngine) -> None:
        while True:
            readiness = await engine_readiness(http, engine.url)
            if not self._state.draining:
                self._view.show(_shown_name(unit, engine), readiness)
            if readiness is not None and readiness.ready:
                self._mark_ready(engine.name)
                return
            await asyncio.sleep(self._options.probe_interval)

    async def _gateway_ready(self, http: aiohttp.ClientSession, unit: Unit) -> bool:
        """Return whether the gateway may send requests to all engines of the unit."""
        answers = [await gateway_ready(http, unit.url, engine.url) for engine in unit.engines]
        return all(answers)

    async def _report_unready(self, engine: LocalEngine) -> None:
        """Report when a running engine becomes unready and ready again.

        Its server restarts a dead engine process by itself, but the running requests have failed.
        """
        ready = True
        while True:
            await asyncio.sleep(self._options.watch_interval)
            if engine.name not in self._ready or self._state.draining:
                ready = True  # a restart of the child has its own report
                continue
            readiness = await engine_readiness(self._http, engine.url)
            if readiness is None or readiness.ready == ready:
                continue
            ready = readiness.ready
            if ready:
                self._view.print_line(f"{engine.name} is ready again", style="green")
            else:
                why = readiness.reason or readiness.stage
                self._view.print_line(f"{engine.name} is not ready: {why}", style="yellow")

    async def _until_ready_again(self, name: str) -> None:
        """Wait until a restarted child is ready, and report it."""
        engines = {engine.name: engine for unit in self._units for engine in unit.engines}
        behind = [unit for unit in self._units if unit.gateway == name]
        while True:
            await asyncio.sleep(self._options.probe_interval)
            if name in engines:
                readiness = await engine_readiness(self._http, engines[name].url)
                ready = readiness is not None and readiness.ready
            else:
                ready = all([await self._gateway_ready(self._http, unit) for unit in behind])
            if ready and name not in self._ready and self._runs(name):
                self._mark_ready(name)
                self._view.print_line(f"{name} is ready again", style="green")
            if name in self._ready:
                return

    def _mark_ready(self, name: str) -> None:
        self._ready.add(name)
        self._events.put_nowait(ChildReady(self._now(), name))

    def _runs(self, name: str) -> bool:
        return any(child.name == name and child.phase == "running" for child in self._state.children)

    async def _announce(self, http: aiohttp.ClientSession, unit: Unit) -> None:
        self._view.print_line("")
        self._view.print_line(f"{unit.name} is ready: {unit.url}/v1", style="bold green")
        if not await takes_chats(http, unit.url, unit.model):
            self._without_chat.add(unit.name)
        self._view.print_line(f"status page: {unit.url}/ui")
        self._view.print_line(unit.curl(chat=unit.name not in self._without_chat))

    async def _demonstrate(self, http: aiohttp.ClientSession, unit: Unit) -> None:
        answers = []
        words = len(demo.document().split())
        chat = unit.name not in self._without_chat
        noun = "chats with" if chat else "prompts for"
        self._view.print_line(f"\nfour {noun} {unit.model} that share a document of {words} words:")
        for question, messages in demo.chats():
            answer = await demo.ask(http, unit.url, unit.model, question, messages, chat=chat)
            answers.append(answer)
            share = f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens resumed"
            self._view.print_line(f"  {question:<24} {answer.text[:60]!r:<24} {share}")
        self._view.print_line(demo.summary(answers), style="bold")
        self._view.print_line(f"the endpoint: {unit.url}/v1")

    async def _watch(self, http: aiohttp.ClientSession, on_edit: OnEdit) -> None:
        paths = [path for path in dict.fromkeys(unit.loaded.path for unit in self._units) if path != STDIN]

        def look() -> list[FileStamp]:
            return [FileStamp.read(path) for path in paths]

        stamps = await asyncio.to_thread(look)
        absent = MissingFiles()
        postponed = False
        while True:
            await asyncio.sleep(self._options.watch_interval)
            now = await asyncio.to_thread(look)
            for line in absent.lines(now):
                self._view.print_line(line, style="yellow")
            if edited := changed(stamps, now):
                names = [engine.name for unit in self._units for engine in unit.engines]
                if not all(name in self._ready for name in names):
                    # A loading engine accepts no settings. The edit is found again at the next check.
                    if not postponed:
                        words = (
                            f"{', '.join(map(str, edited))} changed: the edit is applied once all "
                            "engines are ready"
                        )
                        self._view.print_line(words, style="cyan")
                    postponed = True
                    continue
                postponed = False
                self._view.print_line(f"{', '.join(map(str, edited))} changed", style="cyan")
                lines, units = await on_edit(http)
                self._commands = _commands(units)
                for line in lines:
                    self._view.print_line(f"  {line}")
            stamps = settled(stamps, now)

    def _stop(self) -> None:
        if self._state.draining:
            self._view.print_line("ending now", style="yellow")
        elif not self._ready:
            self._view.close()
            self._view.print_line("stopping: nothing is served yet", style="dim")
        else:
            longest = self._options.restart_policy.drain_timeout
            self._view.print_line(
                f"draining: running requests may finish within {longest:g} s; Ctrl-C again stops now",
                style="dim",
            )
        self._events.put_nowait(DrainRequested(self._now()))

    def _put_exit(self, name: str, code: int | None, reason: str) -> None:
        self._events.put_nowait(ChildExited(self._now(), name, code, reason))

    def _task(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # a defect in a task must not leave the session waiting forever
                self._view.print_line(f"internal error: {type(error).__name__}: {error}", style="red")
                self._events.put_nowait(DrainRequested(self._now(), exit_code=1))

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _shown_name(unit: Unit, engine: LocalEngine) -> str:
    """Return the name under which the loading of an engine is shown."""
    return unit.name if engine.role == "unified" else engine.name


def _commands(units: list[Unit]) -> dict[str, Command]:
    """Return the command that starts each child, by the child's name."""
    return {name: command for unit in units for name, command in unit.commands().items()}
