"""The loop around the core: what goes out for what comes in, in which order, and how long it waits."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from depth_coded import oracle
from engine_trial import EngineTrial, TrialSetup
from mamba_prefix.change_log import ChangeLog
from mamba_server.cache.errors import LedgerViolation
from mamba_server.engine.admin import AdminCalls
from mamba_server.engine.engine_loop import (
    CHANGES_SECONDS,
    STATS_SECONDS,
    EngineLoop,
    report_progress,
    send_fatal,
)
from mamba_server.engine.errors import DeviceLost
from mamba_server.engine.grammar_compiler import GrammarCompiler
from mamba_server.engine.sequences.output_grammar import OutputGrammar
from mamba_server.wire import (
    AbortRequest,
    AddRequest,
    AdminCall,
    AdminReply,
    EngineStats,
    Fatal,
    FromEngine,
    Outputs,
    PrefixChanges,
    Progress,
    Ready,
    RequestRejected,
    SamplingParams,
    SequenceDelta,
    Shutdown,
    StopSequence,
    Taken,
    ToEngine,
)

READY = Ready(97, 1024, (0,), {"strategy": "ExtraBuffer"})


class ScriptedPort:
    """Hands out one batch of messages a call, then `Shutdown`; time passes as the loop waits and works."""

    def __init__(self, *batches: list[ToEngine], step_seconds: float = 0.01) -> None:
        self.batches = list(batches)
        self.sent: list[FromEngine] = []
        self.sent_at: list[float] = []
        self.timeouts: list[float] = []
        self.now = 100.0
        self.step_seconds = step_seconds

    def clock(self) -> float:
        return self.now

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)
        self.sent_at.append(self.now)

    def receive(self, timeout: float) -> list[ToEngine]:
        self.timeouts.append(timeout)
        messages = self.batches.pop(0) if self.batches else [Shutdown()]
        self.now += self.step_seconds if messages else max(timeout, self.step_seconds)
        return messages

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def deltas(self) -> list[SequenceDelta]:
        return [delta for message in self.of(Outputs) for delta in message.deltas]


def trial(**changes: object) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 40, **changes}), random.Random(0))


def serve(
    port: ScriptedPort, engine: EngineTrial | None = None, grammars: GrammarCompiler | None = None
) -> ScriptedPort:
    engine = engine or trial()
    grammars = grammars or GrammarCompiler(Path("nowhere"), 97, (0,))
    process = EngineLoop(engine.core, AdminCalls(engine.core, {}), port, port.clock, grammars=grammars)
    process.run(READY)
    return port


def add(name: str, prompt: list[int], outputs: int) -> AddRequest:
    return AddRequest(name, prompt, SamplingParams(max_tokens=outputs, ignore_eos=True))


def idle(turns: int) -> list[list[ToEngine]]:
    return [[] for _ in range(turns)]


def test_ready_is_the_first_word_and_shutdown_the_last() -> None:
    port = serve(ScriptedPort())
    assert port.sent == [READY]


def test_what_comes_with_a_shutdown_before_it_is_done_and_after_it_is_not() -> None:
    calls = [AdminCall(1, "plan"), Shutdown(), AdminCall(2, "plan")]
    port = serve(ScriptedPort(calls))
    assert [reply.call_id for reply in port.of(AdminReply)] == [1]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_is_answered_token_by_token_to_its_end(overlap: bool) -> None:
    port = serve(ScriptedPort([add("r", [5, 6, 7], 4)], *idle(8)), trial(overlap=overlap))
    deltas = port.deltas()
    assert [token for delta in deltas for token in delta.token_ids] == oracle([5, 6, 7], 4)
    assert [delta.finish_reason for delta in deltas] == [None, None, None, "length"]


def test_what_a_step_makes_is_searched_for_garbage_after_it() -> None:
    before = gc.get_stats()[1]["collections"]
    engine = trial()
    serve(ScriptedPort([add("r", [5, 6, 7], 30)], *idle(40)), engine)
    assert engine.core.step_number >= 30
    assert gc.get_stats()[1]["collections"] - before >= engine.core.step_number


def test_a_step_without_a_token_sends_no_empty_output() -> None:
    engine = trial(step_tokens=16, chunk=16)
    port = serve(ScriptedPort([add("r", list(range(1, 65)), 1)], *idle(8)), engine)
    assert len(port.of(Outputs)) == len(port.deltas()) == 1
    assert engine.core.step_number == 4


def test_a_refusal_goes_back_under_the_id_of_its_request_and_the_others_are_served() -> None:
    long = AddRequest("long", [1] * 2000, SamplingParams(max_tokens=1))
    port = serve(ScriptedPort([long, add("short", [3, 4], 1)], *idle(4)))
    (rejected,) = port.of(RequestRejected)
    assert (rejected.request_id, rejected.code) == ("long", "context_length_exceeded")
    assert [delta.request_id for delta in port.deltas()] == ["short"]


def test_messages_of_one_turn_are_taken_in_order() -> None:
    together = [add("r", [5, 6, 7], 4), AbortRequest("r"), add("r", [8, 9], 2)]
    port = serve(ScriptedPort(together, *idle(8)))
    assert not port.of(RequestRejected)
    assert [token for delta in port.deltas() for token in delta.token_ids] == oracle([8, 9], 2)


def test_an_abort_is_followed_by_silence() -> None:
    port = ScriptedPort([add("r", [5, 6, 7], 50)], *idle(3), [AbortRequest("r")], *idle(4))
    engine = trial()
    serve(port, engine)
    assert 1 <= len(port.deltas()) <= 4
    assert all(delta.finish_reason is None for delta in port.deltas())
    assert engine.core.idle


def test_a_stop_string_ends_a_sequence_without_another_word() -> None:
    port = ScriptedPort([add("r", [5, 6, 7], 50)], *idle(4), [StopSequence("r", 0, 2)], *idle(4))
    engine = trial()
    serve(port, engine)
    assert all(delta.finish_reason is None for delta in port.deltas())
    assert engine.core.finished == {"stop": 1}


def test_a_failed_step_is_told_and_the_loop_goes_on() -> None:
    engine = trial(overlap=False)
    engine.runner.fail_steps[1] = "before"
    port = serve(ScriptedPort([add("bad", [5, 6], 3)], [], [add("good", [7, 8], 2)], *idle(4)), engine)
    assert [(d.request_id, d.finish_reason) for d in port.deltas() if d.finish_reason] == [
        ("bad", "error"),
        ("good", "length"),
    ]


def test_a_lost_device_ends_the_process_once_its_requests_know() -> None:
    engine = trial(overlap=False)
    engine.runner.failure = "CUDA error: an illegal memory access was encountered"
    engine.runner.fail_steps[1] = "before"
    port = ScriptedPort([add("one", [5, 6], 3), add("two", [7, 8], 3)], *idle(4))
    with pytest.raises(DeviceLost, match="illegal memory access") as caught:
        serve(port, engine)
    assert caught.value.exit_code == 1
    assert sorted((d.request_id, d.finish_reason) for d in port.deltas()) == [
        ("one", "error"),
        ("two", "error"),
    ]
    assert len(port.batches) == 4


# --- how long it waits ---------------------------------------------------------------------------------


def test_an_idle_engine_sleeps_between_statistics_and_a_busy_one_does_not_wait_at_all() -> None:
    engine = trial(overlap=False)
    port = serve(ScriptedPort([], [add("r", [5, 6, 7], 3)], *idle(4)), engine)
    assert port.timeouts == [STATS_SECONDS, STATS_SECONDS, 0.0, 0.0, STATS_SECONDS, STATS_SECONDS, 0.5]


def test_an_engine_that_cannot_go_on_waits_a_little_instead_of_spinning() -> None:
    engine = trial()
    engine.arena.refuse = lambda _: True
    port = serve(ScriptedPort([add("r", [5, 6, 7], 3)], *idle(5)), engine)
    assert port.timeouts[1:] == [0.001] * 6


# --- statistics ----------------------------------------------------------------------------------------


def test_statistics_come_at_their_pace_however_many_steps_are_made() -> None:
    port = ScriptedPort([add("r", [5, 6, 7], 900)], *idle(300), step_seconds=STATS_SECONDS / 50)
    serve(port, trial(overlap=False, slabs=400))
    assert len(port.of(EngineStats)) == 301 // 50 + 1


def test_an_idle_engine_still_sends_a_sign_of_life() -> None:
    port = serve(ScriptedPort(*idle(6)))
    assert len(port.of(EngineStats)) == 6


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("outputs", [1, 5])
def test_the_end_of_all_work_is_told_at_once(overlap: bool, outputs: int) -> None:
    port = ScriptedPort([], [add("r", [5, 6, 7], outputs)], *idle(outputs + 2), step_seconds=0.001)
    serve(port, trial(overlap=overlap))
    told = [(at, each) for at, each in zip(port.sent_at, port.sent, strict=True) if type(each) is EngineStats]
    at, stats = next(each for each in told if each[1].counters["generation_tokens_total"] == outputs)
    assert at < 100.0 + STATS_SECONDS + 0.1
    assert stats.gauges["requests_running"] == 0


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_leak_ends_the_process_as_soon_as_it_is_idle(overlap: bool, outputs: int) -> None:
    engine = trial(overlap=overlap)
    port = ScriptedPort([add("r", [5, 6, 7], outputs)], *idle(12))
    engine.arena.free_slot = lambda slot: None  # type: ignore[method-assign]
    with pytest.raises(LedgerViolation, match="W1"):
        serve(port, engine)
    assert len(port.deltas()) == outputs


class SlowClockPort(ScriptedPort):
    """Time passes between any two looks at the clock, as it does while a large cache is counted."""

    def clock(self) -> float:
        self.now += 0.005
        return self.now


def test_a_request_that_comes_in_the_middle_of_a_recount_is_served_before_it_goes_on() -> None:
    engine = trial(overlap=False)
    port = SlowClockPort([add("one", [5, 6, 7], 1)], [], [add("two", [8, 9], 1)], *idle(40))
    slices = 0
    real = engine.arena.check_slabs

    def counted() -> Iterator[None]:
        nonlocal slices
        for _ in range(10):
            slices += 1
            yield
        yield from real()

    engine.arena.check_slabs = counted  # type: ignore[method-assign]
    serve(port, engine)
    assert [delta.request_id for delta in port.deltas()] == ["one", "two"]
    # The first recount was cut short, the second one went to its end.
    assert 10 < slices < 20
    assert port.timeouts[-1] == STATS_SECONDS


def test_a_request_that_was_given_up_before_it_was_read_is_not_begun() -> None:
    port = ScriptedPort([add("gone", [5, 6, 7], 4), add("live", [5, 6], 1), AbortRequest("gone")], *idle(20))
    engine = trial()
    serve(port, engine)
    assert [delta.request_id for delta in port.deltas()] == ["live"]
    assert port.of(Taken) == [Taken(["gone", "live"])]
    assert engine.core.finished["abort"] == 0


class LateGrammar(GrammarCompiler):
    """One whose only grammar is made after so many looks."""

    def __init__(self, looks: int) -> None:
        super().__init__(Path("nowhere"), 97, (0,))
        self._looks = looks
        self._waiting: AddRequest | None = None

    @property
    def pending(self) -> bool:
        return self._waiting is not None

    def begin(self, request: AddRequest) -> None:
        self._waiting = request

    def take(self) -> list[tuple[AddRequest, OutputGrammar | RequestRejected]]:
        if self._waiting is None or self._looks:
            self._looks -= self._waiting is not None
            return []
        taken, self._waiting = self._waiting, None
        return [(taken, RequestRejected(taken.request_id, 400, "invalid_request_error", "x", "no"))]


@pytest.mark.parametrize("looks", [3, 5])
def test_a_request_whose_grammar_is_made_in_the_middle_of_a_recount_begins_it_anew(looks: int) -> None:
    engine = trial(overlap=False)
    guided = AddRequest("two", [8, 9], SamplingParams(max_tokens=1, ignore_eos=True, grammar="start: /x/"))
    port = SlowClockPort([add("one", [5, 6, 7], 1)], [guided], *idle(40))
    begun = 0
    real = engine.arena.check_slabs

    def counted() -> Iterator[None]:
        nonlocal begun
        begun += 1
        for _ in range(10):
            yield
        yield from real()

    engine.arena.check_slabs = counted  # type: ignore[method-assign]
    serve(port, engine, LateGrammar(looks))
    assert [rejected.request_id for rejected in port.of(RequestRejected)] == ["two"]
    assert begun == 3
    assert port.timeouts[-1] == STATS_SECONDS


def test_a_leak_is_found_however_the_recount_is_cut() -> None:
    engine = trial(overlap=False)
    engine.arena.free_slot = lambda slot: None  # type: ignore[method-assign]
    with pytest.raises(LedgerViolation, match="W1"):
        serve(SlowClockPort([add("r", [5, 6, 7], 1)], *idle(40)), engine)


# --- a look at the ledger, and a flush --------------------------------------------------------------------


def looks(port: ScriptedPort) -> list[tuple[int, bool]]:
    return [(reply.call_id, reply.body["recounted"]) for reply in port.of(AdminReply)]


def test_a_look_at_an_idle_engine_waits_for_the_recount_and_a_second_one_needs_none() -> None:
    engine = trial(overlap=False)
    port = SlowClockPort([add("r", [5, 6, 7], 1)], [], [AdminCall(1, "ledger")], *idle(40))
    port.batches.append([AdminCall(2, "ledger")])
    slices = 0
    real = engine.arena.check_slabs

    def counted() -> Iterator[None]:
        nonlocal slices
        for _ in range(10):
            slices += 1
            yield
        assert not port.of(AdminReply)
        yield from real()

    engine.arena.check_slabs = counted  # type: ignore[method-assign]
    serve(port, engine)
    assert (looks(port), slices) == ([(1, True), (2, True)], 10)


def test_a_look_at_a_busy_engine_is_answered_at_once_with_what_is_counted_all_along() -> None:
    engine = trial()
    engine.arena.check_slabs = None  # type: ignore[method-assign, assignment]
    port = ScriptedPort([add("r", [5, 6, 7], 30)], [AdminCall(1, "ledger")], *idle(3))
    serve(port, engine)
    assert looks(port) == [(1, False)]
    (reply,) = port.of(AdminReply)
    assert (reply.body["running"], reply.body["slots_live"], reply.body["step"]) == (1, 1, 2)
    assert port.sent_at[port.sent.index(reply)] < 100.0 + 3 * port.step_seconds


def test_who_comes_while_a_look_waits_does_not_wait_for_it_nor_it_for_them() -> None:
    engine = trial(overlap=False)
    port = SlowClockPort([AdminCall(1, "ledger"), add("r", [5, 6, 7], 20)], *idle(4))
    serve(port, engine)
    assert looks(port) == [(1, False)]
    assert len(port.deltas()) == 5


def test_books_that_are_wrong_are_not_shown_by_an_idle_engine() -> None:
    engine = trial(overlap=False)
    engine.arena.free_slot = lambda slot: None  # type: ignore[method-assign]
    port = SlowClockPort([add("r", [5, 6, 7], 1)], [AdminCall(1, "ledger")], *idle(40))
    with pytest.raises(LedgerViolation, match="W1"):
        serve(port, engine)
    assert not port.of(AdminReply)


def test_what_was_flushed_is_swept_between_steps_and_before_the_engine_rests() -> None:
    engine = trial(overlap=False, slabs=400)
    for start in range(1, 60, 6):
        engine.core.add(add(f"old{start}", list(range(start, start + 30)), 1))
    while not engine.core.idle:
        engine.core.step()
    there = engine.cache.tree.checkpoints
    left: list[int] = []

    class Watched(SlowClockPort):
        def receive(self, timeout: float) -> list[ToEngine]:
            left.append(engine.cache.tree.forgotten)
            return super().receive(timeout)

    flush = [AdminCall(1, "flush_cache"), add("r", [5, 6, 7], 9)]
    port = Watched(flush, *idle(60), [AdminCall(2, "ledger")], [])
    serve(port, engine)
    dropped, shown = (reply.body for reply in port.of(AdminReply))
    assert dropped["checkpointsDropped"] == there > 30
    assert len(port.deltas()) == 9
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert 0 < max(steps) < 20
    assert max(left) > there - 20
    assert (left[-1], shown["recounted"], shown["slots_cached"]) == (0, True, shown["checkpoints"])
    assert port.timeouts[-1] == STATS_SECONDS


# --- before it serves ----------------------------------------------------------------------------------


def test_progress_is_told_at_most_ten_times_a_second_but_always_at_its_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 50.0
    monkeypatch.setattr("mamba_server.engine.engine_loop.time.monotonic", lambda: now)
    port = ScriptedPort()
    report = report_progress(port)
    for done in range(1001):
        report("weights", done, 1000)
        now += 0.001
    told = [message.done for message in port.of(Progress)]
    assert (told[0], told[-1]) == (0, 1000)
    assert 10 <= len(told) <= 12
    assert told == sorted(told)


def test_each_stage_begins_and_ends_however_fast_it_is() -> None:
    port = ScriptedPort()
    report = report_progress(port)
    for stage in ("importing torch", "weights"):
        for done in (0, 1, 2):
            report(stage, done, 2)
    assert [(each.stage, each.done) for each in port.sent if each.done != 1] == [
        ("importing torch", 0), ("importing torch", 2), ("weights", 0), ("weights", 2),
    ]  # fmt: skip


def test_last_words_carry_the_exit_code() -> None:
    port = ScriptedPort()
    send_fatal(port, "needs 12Gi, has 8Gi", 3)
    assert port.sent == [Fatal("needs 12Gi, has 8Gi", 3)]


def test_checkpoints_are_told_at_their_pace_and_the_last_ones_before_the_engine_rests() -> None:
    engine = trial(slabs=400)
    prompts = [add(f"r{start}", list(range(start, start + 40)), 60) for start in range(1, 50, 7)]
    port = serve(ScriptedPort(prompts, *idle(200)), engine)
    told = ChangeLog("e", wall=lambda: 0.0)
    for message in port.of(PrefixChanges):
        told.take(message.epoch, cleared=message.cleared, gained=message.gained, lost=message.lost)
    assert len(told.depths) == engine.cache.tree.checkpoints > 10
    times = [
        at for message, at in zip(port.sent, port.sent_at, strict=True) if type(message) is PrefixChanges
    ]
    assert len(times) > 3
    assert all(later - before >= CHANGES_SECONDS for before, later in itertools.pairwise(times))
    # Idle, it waits no longer for the rest of them than for the pace.
    assert CHANGES_SECONDS in port.timeouts
    assert port.timeouts[-1] == STATS_SECONDS


def test_a_flush_is_told_though_nothing_was_cached() -> None:
    port = serve(ScriptedPort([AdminCall(1, "flush_cache")], *idle(2)))
    assert port.of(PrefixChanges) == [PrefixChanges(2, True, b"", b"")]


def test_an_idle_engine_goes_on_with_an_audit_and_then_rests() -> None:
    engine = trial(audits=1.0, overlap=False)
    port = ScriptedPort([add("a", [*range(1, 30)], 2)], *idle(6), [add("b", [*range(1, 30)], 2)], *idle(40))
    serve(port, engine)
    assert [result.outcome for result in engine.audits.log.results] == ["ok"]
    assert not engine.audits.due
    assert port.timeouts[-1] == STATS_SECONDS


def test_a_shutdown_amid_an_audit_ends_the_loop() -> None:
    engine = trial(audits=1.0, overlap=False, chunk=16, slabs=120)
    long = [1 + at % 90 for at in range(200)]
    port = ScriptedPort([add("a", long, 1)], *idle(16), [add("b", long, 1)], *idle(5))
    serve(port, engine)
    assert engine.audits.holding
    engine.audits.interrupt()
    engine.close()
