"""A whole engine on a GPU.

Resumed, preempted or changed requests get the same answers as undisturbed ones; nothing is compiled while the
engine serves; the engine serves where graphs cannot be had.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.gpu.engine_run import Answer, Load, agreement, run
from benchmarks.gpu.model_directory import GRANITE, QWEN
from benchmarks.gpu.models import NANO

from kernel_variants import late, variants
from mamba_server.engine.boot import Engine
from mamba_server.engine.execution.step_graphs import GraphMemoryShort
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from recorded_work import RecordedGraphs

pytestmark = pytest.mark.gpu
Booted = Callable[..., Engine]
LOAD = Load(requests=6, prompt=90, output=6, shared=70, vocab_size=120)
ALIKE = 0.9
"""Share of tokens before a difference, on a card: other batches round otherwise."""


def same(device: torch.device, ours: dict[str, Answer], theirs: dict[str, Answer]) -> None:
    least = 1.0 if device.type == "cpu" else ALIKE
    assert agreement(ours, theirs)["tokens_before_a_difference"] >= least


def test_a_resumed_prompt_answers_as_a_computed_one(booted: Booted, device: torch.device) -> None:
    engine = booted(NANO)
    cold, _ = run(engine, LOAD.add_requests("cold", salted=True))
    engine.core.flush_cache()
    run(engine, LOAD.add_requests("first"))
    hit, _ = run(engine, LOAD.add_requests("hit"))
    assert sum(answer.cached for answer in hit.values()) > 0
    same(device, hit, cold)


def test_preempted_sequences_answer_as_undisturbed_ones(booted: Booted, device: torch.device) -> None:
    engine = booted(NANO)
    undisturbed, _ = run(engine, LOAD.add_requests("undisturbed", salted=True))
    rng, step, preempted = random.Random(1), engine.core.step, 0

    def disturbed() -> Any:
        nonlocal preempted
        running = [*engine.core.scheduler.prefilling, *engine.core.scheduler.decoding]
        if running and rng.random() < 0.3:
            engine.core.scheduler.preempt(rng.choice(running))
            preempted += 1
        return step()

    engine.core.step = disturbed  # type: ignore[method-assign]
    answers, _ = run(engine, LOAD.add_requests("preempted", salted=True))
    assert preempted > 2
    same(device, answers, undisturbed)


def test_a_change_of_strategy_under_load_changes_no_answer(booted: Booted, device: torch.device) -> None:
    engine = booted(NANO)
    undisturbed, _ = run(engine, LOAD.add_requests("undisturbed", salted=True))
    names, step, count = ("NoBuffer", "ExtraBuffer", "ExtraBufferLazy"), engine.core.step, 0

    def changing() -> Any:
        nonlocal count
        count += 1
        assert engine.core.change_strategy(names[count % len(names)]) is None
        return step()

    engine.core.step = changing  # type: ignore[method-assign]
    answers, _ = run(engine, LOAD.add_requests("changed", salted=True))
    assert count > len(names)
    same(device, answers, undisturbed)


def mixed(steps: int, seed: int) -> list[AddRequest]:
    """Return requests of every kind whose prompts and answers take about so many steps."""
    rng = random.Random(seed)
    kinds = [
        SamplingParams(max_tokens=3, temperature=0.7, seed=9, top_p=0.9, presence_penalty=0.5),
        SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=4, ignore_eos=True),
    ]
    return [
        AddRequest(
            f"{seed}-{number}",
            TokenIds([rng.randrange(3, 120) for _ in range(rng.choice([1, 2, 17, 64, 65, 130, 200]))]),
            rng.choice(kinds),
        )
        for number in range(steps // 2)
    ]


@pytest.mark.parametrize("name", [NANO, GRANITE, QWEN])
def test_nothing_is_compiled_while_it_serves(booted: Booted, device: torch.device, name: str) -> None:
    if device.type == "cuda":
        engine = booted(name)
        run(engine, mixed(200, seed=1))
        assert engine.device_counters()["jit_compilations_after_ready_total"] == 0
        return
    engine = booted(name, graphs=RecordedGraphs(), max_running_requests=2)
    runner: Any = engine.core._runner
    with variants() as prepared:
        assert runner.warm_up(lambda *_: None)
    with variants() as served:
        run(engine, mixed(12, seed=1))
    assert [*late(served, prepared)] == []


def test_no_step_takes_more_memory_than_was_planned(booted: Booted, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("a card's allocator is asked; CPUs have a test of their own")
    engine = booted(NANO)
    plan = engine.plan
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    lasting = torch.cuda.memory_allocated()
    run(engine, mixed(60, seed=2))
    assert (
        torch.cuda.max_memory_allocated() - lasting
        <= plan.budget_bytes - plan.weights_bytes - plan.arena_bytes
    )


class NoMemoryForGraphs:
    """Graphs for which there is no memory."""

    def __init__(self) -> None:
        self.asked = 0

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.asked += 1
        raise GraphMemoryShort("0 MiB are free")

    def begin_anew(self) -> None:
        """Forget all captures."""


class BrokenCapture(NoMemoryForGraphs):
    """Captures that break, as one does in which something waits for the device."""

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.asked += 1
        if not torch.cuda.is_available():
            raise RuntimeError("operation not permitted when stream is capturing")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
            torch.cuda.current_stream().synchronize()
        raise AssertionError("a wait can be captured")


@pytest.mark.parametrize("graphs", [NoMemoryForGraphs, BrokenCapture])
def test_without_graphs_an_engine_serves_the_same(
    booted: Booted, device: torch.device, graphs: type[NoMemoryForGraphs]
) -> None:
    expected, _ = run(booted(NANO, decode_graphs="off"), LOAD.add_requests("expected"))
    broken = graphs()
    answers, _ = run(booted(NANO, graphs=broken), LOAD.add_requests("got"))
    assert broken.asked
    same(device, answers, expected)
