"""Computations before an engine is ready: the worst steps, to measure them, and one of each kind."""

from pathlib import Path
from typing import Any

import pytest

from engines import make_engine, run
from gate_cases import LARGE
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.engine.boot import BootOverrides
from mamba_server.engine.execution.workspace_trial import worst_steps
from mamba_server.wire import AddRequest, SamplingParams
from peak_memory import peak_bytes

PENALIZED = SamplingParams(
    max_tokens=4, temperature=0.7, seed=9, presence_penalty=0.5, repetition_penalty=1.1, prompt_logprobs=1
)


@pytest.mark.parametrize("state_dtype", ["float32", "float16"] if LARGE else ["float32"])
def test_the_worst_steps_are_computed_and_measured_by_the_kernels_that_serve(
    two_layers: Path, monkeypatch: pytest.MonkeyPatch, state_dtype: str
) -> None:
    # Programs that find nothing to do take the interpreter as long as others.
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    taken: list[int] = []

    def measure(work: Any) -> int:
        taken.append(peak_bytes(work))
        return taken[-1]

    engine = make_engine(
        two_layers, trial=BootOverrides(measure=measure), arena_bytes=None, device_memory="512Mi",
        max_running_requests=2, max_model_len=96, chunked_prefill_tokens=64,
        state_dtype=state_dtype,
    )  # fmt: skip
    ledger = {line.item: line.bytes for line in engine.plan.ledger}
    assert 0 < taken[0] < ledger["workspace"]
    runner = engine.core._runner
    told: list[str] = []
    assert runner.warm_up(lambda what, *_: told.append(what))
    assert told[-1] == "preparing prompts"

    prompts = [[6 + (at * n) % 150 for at in range(60)] for n in (3, 7)]
    requests = [AddRequest(str(number), prompt, PENALIZED) for number, prompt in enumerate(prompts)]
    engine.core.add(requests[0])
    seen = [peak_bytes(engine.core.step)]
    engine.core.add(requests[1])
    while not engine.core.idle:
        seen.append(peak_bytes(engine.core.step))
    assert max(seen) <= taken[0]
    engine.stream.close()


def test_the_steps_are_as_large_as_the_limits_allow(two_layers: Path) -> None:
    engine = make_engine(two_layers, max_running_requests=3, chunked_prefill_tokens=64)
    limits = engine.core.scheduler.limits
    shapes = [(len(host.positions), len(host.context_len)) for host, _ in worst_steps(limits, 6)]
    assert shapes == [(64, 1), (63, 3), (3, 3)]
    assert [int(host.context_len.max()) for host, _ in worst_steps(limits, 6)][::2] == [
        limits.max_model_len
    ] * 2
    run(engine, [])
