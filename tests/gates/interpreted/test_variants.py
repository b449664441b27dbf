"""Nothing is compiled while requests are served: what the start has run is all that Triton has to compile."""

import random
from pathlib import Path
from typing import Any

import pytest

from engines import make_engine, run
from gate_cases import LARGE
from kernel_variants import late, variants
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.engine.boot import BootOverrides
from mamba_server.wire import AddRequest, SamplingParams
from recorded_work import RecordedGraphs

PENALIZED = SamplingParams(
    max_tokens=3, temperature=0.7, seed=9, top_p=0.9, presence_penalty=0.5, repetition_penalty=1.1
)
SCORED = SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1)
GREEDY = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("state_dtype", ["float32", "float16"] if LARGE else ["float16"])
def test_serving_launches_what_the_start_has_compiled(
    two_layers: Path, monkeypatch: pytest.MonkeyPatch, state_dtype: str
) -> None:
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    engine = make_engine(
        two_layers, trial=BootOverrides(graphs=RecordedGraphs()), max_running_requests=5, track_interval=16,
        chunked_prefill_tokens=40, state_dtype=state_dtype,
    )  # fmt: skip
    device_side: Any = engine.core._runner
    with variants() as prepared:
        assert device_side.warm_up(lambda *_: None)
    rng = random.Random(3)
    stem = [rng.randrange(6, 200) for _ in range(37)]
    lengths = (1, 2, 33, 60)
    prompts = [[rng.randrange(6, 200) for _ in range(length)] for length in lengths]
    prompts += [[*stem, 7], [*stem, 8, 9], [*stem[:19], 10]]
    kinds = [GREEDY, PENALIZED, SCORED]
    requests = [AddRequest(str(n), prompt, kinds[n % 3]) for n, prompt in enumerate(prompts)]
    with variants() as served:
        run(engine, requests)
    assert [*late(served, prepared)] == []
