"""`EngineLoop`: main loop of the engine process: receives messages, steps the core, sends its results.

Messages are read between two steps, deltas are sent after each step, statistics twice a second. Ends with
`Shutdown`, when the parent process is gone, or with `Fatal` when the engine cannot start.
"""

import time
from collections.abc import Callable

import zmq

from mamba_server import wire
from mamba_server.engine.admin import AdminCalls
from mamba_server.engine.cache_maintenance import CacheMaintenance
from mamba_server.engine.device_counters import Counters
from mamba_server.engine.device_gauges import Gauges
from mamba_server.engine.errors import DeviceLost
from mamba_server.engine.grammar_compiler import GrammarCompiler
from mamba_server.engine.output_messages import output_messages
from mamba_server.engine.process_memory.garbage import search_new_objects
from mamba_server.engine.sequences.output_grammar import OutputGrammar
from mamba_server.engine.stats import collect
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.wire import (
    AbortRequest,
    AddRequest,
    AdminCall,
    EngineStats,
    Fatal,
    FromEngine,
    Progress,
    Ready,
    RequestRejected,
    Shutdown,
    StopSequence,
    Taken,
    ToEngine,
)

STATS_SECONDS = 0.5
CHANGES_SECONDS = 0.05
"""Between two messages about checkpoints."""
GRAMMAR_SECONDS = 0.001
"""Between two looks at grammars that are being made, where nothing else is to be done."""
MOST_MESSAGES = 64
"""Messages handled between two steps: a burst of thousands must not stall the running sequences."""


class EngineSockets:
    """The engine's two sockets."""

    def __init__(self, to_engine: str, from_engine: str) -> None:
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.set_hwm(0)
        self._pull.connect(to_engine)
        self._push = self._context.socket(zmq.PUSH)
        self._push.set_hwm(0)
        self._push.setsockopt(zmq.LINGER, 2000)
        self._push.connect(from_engine)
        self._decode: Callable[[bytes], ToEngine] = wire.decoder(ToEngine).decode
        self._encode = wire.encoder().encode

    def send(self, message: FromEngine) -> None:
        self._push.send(self._encode(message))

    def receive(self, timeout: float) -> list[ToEngine]:
        """Up to `MOST_MESSAGES` messages; waits at most `timeout` seconds for the first."""
        out: list[ToEngine] = []
        if timeout > 0 and not self._pull.poll(int(timeout * 1000)):
            return out
        while len(out) < MOST_MESSAGES:
            try:
                out.append(self._decode(self._pull.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
        return out

    def close(self) -> None:
        self._pull.close()
        self._push.close()
        self._context.term()


class EngineLoop:
    """The loop around one core."""

    def __init__(
        self,
        core: EngineCore,
        admin: AdminCalls,
        port: EngineSockets,
        clock: Callable[[], float] = time.monotonic,
        device_counters: Counters = dict,
        device_gauges: Gauges = dict,
        *,
        grammars: GrammarCompiler,
    ) -> None:
        self._core = core
        self._grammars = grammars
        self._device_counters, self._device_gauges = device_counters, device_gauges
        self._admin = admin
        self._port = port
        self._clock = clock
        self._next_stats = 0.0
        self._maintenance = CacheMaintenance(core.cache, clock)
        self._idle_reported = True
        """The statistics of the idle engine were sent, and no message has arrived since."""
        self._ledger_calls: list[AdminCall] = []
        """Pending `ledger` calls."""
        self._next_changes = 0.0

    def run(self, ready: Ready) -> None:
        """Serve until `Shutdown`. Raises LedgerViolation if the memory accounting is inconsistent,
        DeviceLost."""
        self._port.send(ready)
        stalled = False
        while True:
            resting = self._core.idle and not self._maintenance.due
            rest = CHANGES_SECONDS if self._core.tree_changes.pending else STATS_SECONDS
            if self._grammars.pending:
                rest = GRAMMAR_SECONDS
            messages = self._port.receive(rest if resting else 0.001 if stalled else 0.0)
            for message in self._without_aborted(messages):
                if isinstance(message, Shutdown):
                    return
                self._handle(message)
            for request, grammar in self._grammars.take():
                self._disturb()
                self._add(request, grammar)
            before = self._core.step_number
            deltas = self._core.step()
            stalled = self._core.step_number == before and not deltas
            for outputs in output_messages(deltas):
                self._port.send(outputs)
            if self._core.device_error:
                raise DeviceLost(self._core.device_error)
            self._after_step()

    def _without_aborted(self, messages: list[ToEngine]) -> list[ToEngine]:
        """The messages, without requests that were given up before they could begin."""
        asked = [message.request_id for message in messages if isinstance(message, AddRequest)]
        if not asked:
            return messages
        self._port.send(Taken(asked))
        aborted: set[str] = set()
        kept: list[ToEngine] = []
        for message in reversed(messages):
            if isinstance(message, AbortRequest):
                aborted.add(message.request_id)
            elif isinstance(message, AddRequest) and message.request_id in aborted:
                aborted.remove(message.request_id)
                continue
            kept.append(message)
        return kept[::-1]

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, AdminCall) and message.verb == "ledger":
            self._ledger_calls.append(message)
            return
        self._disturb()
        match message:
            case AddRequest(params=params) if params.grammar:
                self._grammars.begin(message)
            case AddRequest():
                self._add(message, None)
            case StopSequence():
                self._core.stop(message)
            case AbortRequest():
                self._grammars.cancel(message.request_id)
                self._core.abort(message)
            case AdminCall():
                self._port.send(self._admin.answer(message))

    def _disturb(self) -> None:
        """Something comes that may change what is counted."""
        self._maintenance.changed()
        self._idle_reported = False

    def _add(self, request: AddRequest, grammar: OutputGrammar | RequestRejected | None) -> None:
        rejected = grammar if isinstance(grammar, RequestRejected) else self._core.add(request, grammar)
        if rejected is not None:
            self._port.send(rejected)

    def _after_step(self) -> None:
        search_new_objects()
        idle = self._core.idle
        if idle and not self._idle_reported:
            self._send_stats()
            self._idle_reported = True
        self._maintenance.run(idle=idle)
        if not idle or not self._maintenance.due:
            self._answer_ledger_calls()
        now = self._clock()
        if now >= self._next_changes and (changes := self._core.tree_changes.take()) is not None:
            self._next_changes = now + CHANGES_SECONDS
            self._port.send(changes)
        if now >= self._next_stats:
            self._send_stats()

    def _answer_ledger_calls(self) -> None:
        """Answer pending `ledger` calls: an idle engine recounts first, a busy one reports its running
        counts."""
        for call in self._ledger_calls:
            self._port.send(self._admin.answer(call, recounted=self._maintenance.recounted))
        self._ledger_calls.clear()

    def _send_stats(self) -> None:
        self._next_stats = self._clock() + STATS_SECONDS
        stats: EngineStats = collect(self._core, self._device_counters(), self._device_gauges())
        self._port.send(stats)


Report = Callable[[str, int, int], None]


def report_progress(port: EngineSockets) -> Report:
    """A callback (stage, done, total) that tells the API process, at most ten times a second."""
    last = 0.0

    def report(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done in (0, total) or now - last > 0.1:
            last = now
            port.send(Progress(stage, done, total))

    return report


def send_fatal(port: EngineSockets, message: str, exit_code: int) -> None:
    port.send(Fatal(message, exit_code))
