"""The engine core: what is refused, what ends how, and what a failing device leaves behind."""

import random

import numpy as np
import pytest

from depth_coded import oracle
from engine_trial import EngineTrial, TrialSetup
from mamba_planner.strategy import reservation
from mamba_server.engine.admin import AdminCalls
from mamba_server.engine.stats import collect
from mamba_server.wire import AbortRequest, AddRequest, AdminCall, SamplingParams, StopSequence


def trial(**changes: object) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 40, **changes}), random.Random(0))


def admin(engine: EngineTrial, verb: str, **body: object) -> tuple[int, dict]:
    reply = AdminCalls(engine.core, {"strategy": engine.setup.strategy}).answer(AdminCall("1", verb, body))
    return reply.status, reply.body


def test_a_prompt_beyond_the_model_is_refused_with_the_numbers() -> None:
    rejected = trial().core.add(AddRequest("r", [1] * 1000, SamplingParams(max_tokens=100)))
    assert rejected is not None
    assert (rejected.status, rejected.code) == (400, "context_length_exceeded")
    assert "1000" in rejected.message
    assert "max_tokens" in rejected.message


def test_a_sequence_that_never_fits_is_refused_and_not_left_waiting() -> None:
    engine = trial(slabs=6, pages_per_slab=1)
    rejected = engine.core.add(AddRequest("r", [1] * 100, SamplingParams(max_tokens=9)))
    assert rejected is not None
    assert "5 slabs" in rejected.message
    assert engine.core.idle


def test_an_id_in_use_is_refused_and_the_first_request_keeps_its_memory_and_its_end() -> None:
    engine = trial()
    assert engine.core.add(AddRequest("r", [1, 2], SamplingParams(max_tokens=50))) is None
    engine.core.step()
    again = engine.core.add(AddRequest("r", [3], SamplingParams(max_tokens=5)))
    assert again is not None
    assert again.code == "duplicate_request_id"
    engine.core.abort(AbortRequest("r"))
    while not engine.core.idle:
        engine.core.step()
    assert not engine.core.cache.allocations


def test_a_full_queue_says_retry_later() -> None:
    engine = trial()
    engine.core._max_waiting = 2
    rejected = engine.core.add(AddRequest("r", [1], SamplingParams(max_tokens=1), n=3))
    assert rejected is not None
    assert (rejected.status, rejected.retry_after) == (429, 1.0)


def test_an_end_token_ends_the_sequence_and_its_extra_token_is_dropped() -> None:
    for prompt in ([at, at + 1] for at in range(1, 90)):
        alone = oracle(prompt, 60, frozenset({0}))
        if alone[-1] == 0 and 2 < len(alone) < 60:
            break
    engine = trial()
    engine.add(prompt, 60, ignore_eos=False)
    engine.close()
    assert engine.got["r0", 0] == alone
    assert engine.ended["r0", 0] == "stop"


def test_an_aborted_request_gives_no_more_tokens_and_all_memory_back() -> None:
    engine = trial()
    engine.add(list(range(1, 30)), 40, n=2)
    for _ in range(5):
        engine.step()
    engine.abort()
    before = {key: list(tokens) for key, tokens in engine.got.items()}
    engine.close()
    assert engine.got == before
    assert engine.core.finished["abort"] == 2


def test_events_for_requests_that_are_gone_do_nothing() -> None:
    engine = trial()
    engine.core.abort(AbortRequest("nobody"))
    engine.core.stop(StopSequence("nobody", 0, 3))
    engine.close()


def test_a_stop_string_ends_one_sequence_of_several() -> None:
    engine = trial()
    engine.add(list(range(1, 12)), 20, n=2)
    for _ in range(8):
        engine.step()
    engine.core.stop(StopSequence("r0", 1, 2))
    engine.ended["r0", 1] = "stop string"
    engine.close()
    assert engine.ended["r0", 0] == "length"


@pytest.mark.parametrize("how", ["before", "half", "after"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_failed_step_ends_its_sequences_with_an_error_and_serving_goes_on(how: str, overlap: bool) -> None:
    engine = trial(overlap=overlap)
    engine.add(list(range(1, 30)), 20)
    for _ in range(4):
        engine.step()
    engine.runner.fail_steps[engine.core.step_number + 1] = how
    engine.step()
    engine.add(list(range(1, 30)), 20)
    engine.close()
    assert engine.ended == {("r0", 0): "error", ("r1", 0): "length"}
    assert engine.core.failed_steps == 1
    assert engine.core.last_error == "RuntimeError: injected device failure"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_device_that_fails_step_after_step_is_lost_and_every_request_gets_its_error(overlap: bool) -> None:
    engine = trial(overlap=overlap, rows=2)
    for _ in range(8):
        engine.add(list(range(1, 30)), 20)
    for _ in range(3):
        engine.step()
    for step in range(engine.core.step_number + 1, engine.core.step_number + 20):
        engine.runner.fail_steps[step] = "before"
    deltas = []
    while not engine.core.device_error:
        deltas += engine.core.step()
    assert {d.request_id: d.finish_reason for d in deltas if d.finish_reason} == {
        f"r{number}": "error" for number in range(8)
    }
    assert "3 steps in a row" in engine.core.device_error
    assert "injected device failure" in engine.core.device_error
    assert not engine.core.sequences


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: invalid program counter\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, opa, opb)`",
        "CUDA driver error: an illegal memory access was encountered",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    ],
)
def test_an_error_of_the_device_sticks_so_the_first_one_is_the_end_whoever_reports_it(message: str) -> None:
    engine = trial(rows=1)
    for _ in range(2):
        engine.add(list(range(1, 30)), 20)
    engine.runner.fail_steps[2] = "before"
    engine.runner.failure = message
    deltas = [delta for _ in range(3) for delta in engine.core.step()]
    assert [(d.request_id, d.finish_reason) for d in deltas if d.finish_reason] == [
        ("r0", "error"),
        ("r1", "error"),
    ]
    assert message in engine.core.device_error


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: invalid argument",
        "Triton Error [CUDA]: out of memory",
        "Triton Error [CUDA]: invalid argument",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
        "out of resource: shared memory, Required: 300000, Hardware limit: 232448",
        "a bad shape",
    ],
)
def test_failures_with_good_steps_between_them_do_not_end_the_device(message: str) -> None:
    engine = trial(overlap=False)
    engine.runner.failure = message
    for number in range(6):
        engine.runner.fail_steps[engine.core.step_number + 1] = "before"
        engine.add(list(range(1, 30)), 3)
        engine.step()
        engine.add(list(range(1, 30)), 3)
        while not engine.core.idle:
            engine.step()
        assert engine.core.failed_steps == number + 1
    assert not engine.core.device_error


@pytest.mark.parametrize(
    ("strategy", "overlap", "member"),
    [
        ("NoBuffer", True, 0),
        ("NoBuffer", False, 1),
        ("ExtraBufferLazy", True, 1),
        ("ExtraBufferLazy", False, 0),
        ("ExtraBuffer", True, 0),
        ("ExtraBuffer", False, 1),
    ],
)
def test_who_comes_to_nan_ends_alone_and_nothing_of_it_is_resumed(
    strategy: str, overlap: bool, member: int
) -> None:
    """At every moment of its life, with a checkpoint planned in that very step or not."""
    for moment in range(1, 14):
        engine = trial(strategy=strategy, overlap=overlap, slabs=60)
        prompts = [list(range(1, 30)), list(range(40, 69))]
        for prompt in prompts:
            engine.add(prompt, 20)
        for _ in range(moment):
            engine.step()
        engine.spoil_next_step(member)
        while not engine.core.idle:
            engine.step()
        assert engine.ended == {(f"r{n}", 0): "error" if n == member else "length" for n in range(2)}
        assert engine.got[f"r{1 - member}", 0] == oracle(prompts[1 - member], 20)
        found = engine.cache.match(np.array([*prompts[member], 5], np.int32), "", 999)
        assert found.resumable == 0
        engine.add(prompts[member], 20)
        engine.close()


def test_a_checkpoint_from_which_nothing_but_nan_comes_is_dropped() -> None:
    engine = trial()
    prompt = list(range(1, 30))
    for spoilt in (False, True, False):
        engine.add(prompt, 3)
        if spoilt:
            engine.spoil_next_step(0)
        while not engine.core.idle:
            engine.step()
    assert engine.ended == {("r0", 0): "length", ("r1", 0): "error", ("r2", 0): "length"}
    # r1 was resumed as deep as can be, r2 somewhere above.
    assert 28 <= engine.core.scheduler.counters.cached_tokens < 2 * 28


def test_a_request_too_long_for_the_wanted_strategy_refuses_the_change() -> None:
    engine = trial(slabs=8, pages_per_slab=1, page_size=4, strategy="NoBuffer")
    engine.add(list(range(1, 5)), 20)
    refusal = engine.core.change_strategy("ExtraBuffer")
    assert refusal is not None
    assert all(told in refusal.message for told in ("24 tokens", "3 slots", "7 slabs"))
    assert engine.cache.strategy.name == "NoBuffer"
    engine.close()


def busy(*, overlap: bool) -> EngineTrial:
    """Return an engine with four running requests that do not fit under another strategy."""
    engine = trial(slabs=14, pages_per_slab=4, page_size=4, strategy="NoBuffer", overlap=overlap)
    for first in (1, 40, 80, 120):
        engine.add(list(range(first, first + 12)), 24)
    for _ in range(20):
        engine.step()
    assert engine.core.scheduler.running == 4
    assert engine.cache.change_strategy(reservation("ExtraBuffer", overlap=overlap))
    return engine


@pytest.mark.parametrize("overlap", [True, False])
def test_a_busy_engine_takes_another_strategy_and_recomputes_its_youngest(overlap: bool) -> None:
    engine = busy(overlap=overlap)

    assert engine.core.change_strategy("ExtraBuffer") is None

    engine.check()
    assert engine.cache.strategy.name == "ExtraBuffer"
    [first, *_, last] = engine.core.sequences.values()
    assert (first[0].preemptions, last[0].preemptions) == (0, 1)
    engine.close()  # every token is the one served alone, and each came once


def test_what_a_change_of_strategy_committed_is_not_told_of_who_ended_before_the_next_step() -> None:
    engine = busy(overlap=True)
    assert engine.core.change_strategy("ExtraBuffer") is None
    engine.core.abort(AbortRequest("r0"))
    engine.core.stop(StopSequence("r1", 0, 0))
    told = {delta.request_id for delta in engine.core.step()}
    assert told
    assert not told & {"r0", "r1"}


def test_the_strategy_changes_while_serving() -> None:
    engine = trial(strategy="NoBuffer")
    engine.add(list(range(1, 30)), 30)
    for name in ("ExtraBuffer", "ExtraBufferLazy", "NoBuffer"):
        for _ in range(3):
            engine.step()
        status, body = admin(engine, "strategy", strategy=name, trackInterval=8)
        assert (status, body["strategy"]) == (200, name)
    engine.close()


@pytest.mark.parametrize(
    ("verb", "body", "status", "says"),
    [
        ("dance", {}, 404, "no admin call 'dance'"),
        ("strategy", {"strategy": "Huge"}, 400, "is not one of NoBuffer"),
        ("strategy", {"trackInterval": 6}, 400, "multiple of the page size 4"),
        ("strategy", {"trackInterval": "8"}, 400, "multiple of the page size 4"),
        ("strategy", {"trackInterval": True}, 400, "multiple of the page size 4"),
    ],
)
def test_a_bad_admin_call_says_what_is_wrong(verb: str, body: dict, status: int, says: str) -> None:
    answered, message = admin(trial(), verb, **body)
    assert answered == status
    assert says in message["message"]


def test_a_flush_tells_how_many_checkpoints_went() -> None:
    engine = trial()
    engine.add(list(range(1, 30)), 2)
    for _ in range(6):
        engine.step()
    there = engine.cache.tree.checkpoints
    status, body = admin(engine, "flush_cache")
    assert (status, body["checkpointsDropped"], body["epoch"]) == (200, there, 2)
    assert there > 0


def test_the_ledger_and_the_requests_can_be_looked_at() -> None:
    engine = trial()
    engine.add(list(range(1, 30)), 20)
    engine.step()
    status, body = admin(engine, "ledger")
    assert status == 200
    assert body["slots_total"] == 39
    assert body["running"] == 1
    (request,) = admin(engine, "requests")[1]["requests"]
    assert (request["id"], request["phase"], request["promptTokens"]) == ("r0", "decode", 29)
    engine.close()


def test_stats_count_tokens_and_slots_by_owner() -> None:
    engine = trial()
    engine.add(list(range(1, 30)), 20)
    engine.add(list(range(1, 30)), 20)
    for _ in range(5):
        engine.step()
    stats = collect(engine.core)
    owners = [value for name, value in stats.gauges.items() if name.startswith("slabs{")]
    assert sum(owners) == 39
    assert 0 < stats.gauges["arena_usage"] <= 1
    engine.close()
    stats = collect(engine.core)
    assert stats.counters["generation_tokens_total"] == 40
    assert stats.counters["prompt_tokens_total"] == 58
    assert stats.counters["sequences_finished_total{reason=length}"] == 2
    assert stats.gauges["state_usage"] == stats.gauges["kv_usage"] == 0


def test_each_delta_says_when_its_step_was_over_and_the_first_when_its_prompt_began() -> None:
    engine = trial(overlap=True)
    ticks = iter(range(1, 10_000))
    engine.core.clock = lambda: float(next(ticks))
    engine.core.add(AddRequest("r", [1, 2, 3], SamplingParams(max_tokens=4)))
    deltas = []
    while not engine.core.idle:
        deltas += engine.core.step()
    first, *others = deltas
    assert 0 < first.started < first.first_at == first.at
    assert [one.at for one in deltas] == sorted({one.at for one in deltas})
    assert {(one.started, one.first_at) for one in others} == {(0.0, 0.0)}
