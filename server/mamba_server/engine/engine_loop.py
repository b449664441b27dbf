"""`EngineLoop`: main loop of the engine process; it receives messages, steps the core and sends the results.

Messages are read between two steps, deltas are sent after each step, statistics twice a second. The loop ends
with `Shutdown`, when the parent process is gone, or with `Fatal` when the engine cannot start.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import zmq

from mamba_server import wire
from mamba_server.engine.admin import AdminCalls
from mamba_server.engine.cache_maintenance import CacheMaintenance
from mamba_server.engine.device_metrics import Counters, Gauges
from mamba_server.engine.errors import DeviceLost
from mamba_server.engine.grammar_compiler import GrammarCompiler
from mamba_server.engine.process_memory.garbage import search_new_objects
from mamba_server.engine.sequences.output_grammar import NextTokens
from mamba_server.engine.stats import collect
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.wire import (
    AbortRequest,
    AddRequest,
    AdminCall,
    EngineStats,
    Fatal,
    FromEngine,
    Outputs,
    Progress,
    Ready,
    RequestRejected,
    SequenceDelta,
    Shutdown,
    StopSequence,
    Taken,
    ToEngine,
)

STATS_SECONDS = 0.5
CHANGES_SECONDS = 0.05
"""Seconds between two messages about checkpoints."""
GRAMMAR_SECONDS = 0.001
"""Seconds between two checks for compiled grammars, while there is nothing else to do."""
MAX_MESSAGES = 64
"""Most messages handled between two steps: a burst of thousands must not stall running sequences."""
MAX_LOGPROBS = 8192
"""Most log-probabilities in one message: reading one takes about 2 us, which delays everything else."""


class EngineSockets:
    """The two sockets by which the engine process gets messages and sends its own."""

    def __init__(self, to_engine: str, from_engine: str) -> None:
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.set_hwm(0)
        self._pull.connect(to_engine)
        self._push = self._context.socket(zmq.PUSH)
        self._push.set_hwm(0)
        self._push.setsockopt(zmq.LINGER, 2000)
        self._push.connect(from_engine)
        self._wakeups, self._waker = os.pipe()
        os.set_blocking(self._wakeups, False)
        os.set_blocking(self._waker, False)
        self._poller = zmq.Poller()
        self._poller.register(self._pull, zmq.POLLIN)
        self._poller.register(self._wakeups, zmq.POLLIN)
        self._decode: Callable[[bytes], ToEngine] = wire.decoder(ToEngine).decode
        self._encode = wire.encoder().encode

    def send(self, message: FromEngine) -> None:
        self._push.send(self._encode(message))

    def wake(self) -> None:
        """End the wait of `receive`, from any thread: there is something to do besides messages."""
        with contextlib.suppress(BlockingIOError):  # enough wake-ups wait already
            os.write(self._waker, b"\0")

    def receive(self, timeout: float) -> list[ToEngine]:
        """Return up to `MAX_MESSAGES` messages; wait at most `timeout` seconds for the first, or `wake`."""
        messages: list[ToEngine] = []
        if timeout > 0:
            ready = dict(self._poller.poll(int(timeout * 1000)))
            if self._wakeups in ready:
                os.read(self._wakeups, 1 << 12)
            if self._pull not in ready:
                return messages
        while len(messages) < MAX_MESSAGES:
            try:
                messages.append(self._decode(self._pull.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
        return messages

    def close(self) -> None:
        self._pull.close()
        self._push.close()
        self._context.term()
        os.close(self._wakeups)
        os.close(self._waker)


class EngineLoop:
    """Lets one core compute steps, and moves messages between it and the sockets."""

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
        """Whether the statistics of the idle engine were sent, and no message has arrived since."""
        self._ledger_calls: list[AdminCall] = []
        """Pending `ledger` calls."""
        self._next_changes = 0.0

    def run(self, ready: Ready) -> None:
        """Serve until `Shutdown`.

        Raises LedgerViolation if the memory accounting is inconsistent, and DeviceLost.
        """
        self._port.send(ready)
        stalled, changes_before = False, 0
        while True:
            is_resting = self._core.idle and not (self._maintenance.due or self._core.audits.due)
            wait_seconds = CHANGES_SECONDS if self._core.tree_changes.pending else STATS_SECONDS
            if self._grammars.pending:
                wait_seconds = GRAMMAR_SECONDS
            if self._core.awaits_states:
                # A thread wakes the loop when one has come.
                is_resting, wait_seconds = True, min(wait_seconds, CHANGES_SECONDS)
            messages = self._port.receive(wait_seconds if is_resting else 0.001 if stalled else 0.0)
            for message in self._without_aborted(messages):
                if isinstance(message, Shutdown):
                    return
                self._handle(message)
            for request, grammar in self._grammars.take():
                self._disturb()
                self._add(request, grammar)
            step_before = self._core.step_number
            deltas = self._core.step()
            if self._core.other_changes != changes_before:
                changes_before = self._core.other_changes
                self._disturb()
            stalled = self._core.step_number == step_before and not deltas
            for outputs in output_messages(deltas):
                self._port.send(outputs)
            if self._core.device_error:
                raise DeviceLost(self._core.device_error)
            self._after_step()

    def _without_aborted(self, messages: list[ToEngine]) -> list[ToEngine]:
        """Return the messages without requests that were aborted before they could begin."""
        request_ids = [message.request_id for message in messages if isinstance(message, AddRequest)]
        if not request_ids:
            return messages
        self._port.send(Taken(request_ids))
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
            case AddRequest(params=params) if params.grammar or params.thought_budget is not None:
                self._grammars.begin(message)
            case AddRequest(params=params):
                self._add(message, self._grammars.rules(params))
            case StopSequence():
                self._core.stop(message)
            case AbortRequest():
                self._grammars.cancel(message.request_id)
                self._core.abort(message)
            case AdminCall():
                if not self._admin.begin(message):
                    self._port.send(self._admin.answer(message))

    def _disturb(self) -> None:
        """Record that something may change the account of the memory."""
        self._maintenance.changed()
        self._idle_reported = False

    def _add(self, request: AddRequest, grammar: NextTokens | RequestRejected | None) -> None:
        rejected = grammar if isinstance(grammar, RequestRejected) else self._core.add(request, grammar)
        if rejected is not None:
            self._port.send(rejected)

    def _after_step(self) -> None:
        search_new_objects()
        for reply in self._admin.take_replies():
            self._port.send(reply)
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
        """Answer pending `ledger` calls: an idle engine recounts first, a busy one reports its counters."""
        for call in self._ledger_calls:
            self._port.send(self._admin.answer(call, recounted=self._maintenance.recounted))
        self._ledger_calls.clear()

    def _send_stats(self) -> None:
        self._next_stats = self._clock() + STATS_SECONDS
        stats: EngineStats = collect(self._core, self._device_counters(), self._device_gauges())
        self._port.send(stats)


Report = Callable[[str, int, int], None]


def report_progress(port: EngineSockets) -> Report:
    """Return a callback (stage, done, total) that informs the API process, at most ten times a second."""
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


def output_messages(deltas: Sequence[SequenceDelta]) -> Iterator[Outputs]:
    """Yield the messages of one step in the order of sending; long prompt scores come in pieces."""
    whole = []
    for delta in deltas:
        scores = delta.prompt_logprobs or []
        size = 1 + max((len(score.top_ids) for score in scores[-1:] if score is not None), default=0)
        tokens = max(MAX_LOGPROBS // size, 1)
        if len(scores) <= tokens:
            whole.append(delta)
            continue
        for start in range(0, len(scores), tokens):
            piece = scores[start : start + tokens]
            yield Outputs([SequenceDelta(delta.request_id, delta.index, [], prompt_logprobs=piece)])
        whole.append(_without_scores(delta))
    if whole:
        yield Outputs(whole)


def _without_scores(delta: SequenceDelta) -> SequenceDelta:
    return msgspec.structs.replace(delta, prompt_logprobs=None)
