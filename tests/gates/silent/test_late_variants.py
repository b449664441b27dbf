"""No kernel is compiled in a hundred mixed steps of anything that can be asked for, after the start."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engines import make_engine
from gate_cases import LARGE
from kernel_variants import late
from mamba_server.engine.boot import Engine
from mamba_server.wire import AddRequest, SamplingParams
from silent_kernels import silent_kernels
from testmodels.checkpoints import random_nemotron_h, random_qwen3_next

STEPS = 500 if LARGE else 100
EXPERTS: dict[str, Any] = {
    "hybrid_override_pattern": "ME*E", "n_routed_experts": 40, "num_experts_per_tok": 6,
    "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
}  # fmt: skip
ODD: dict[str, Any] = {"mamba_num_heads": 6, "mamba_head_dim": 10, "n_groups": 1, "ssm_state_size": 16}
IN_FULL = pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.05},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 1.0, "logit_bias": {7: 2.0}, "min_tokens": 2},
)


def mixed_steps(engine: Engine, seed: int, steps: int) -> None:
    """Serve requests of any length and any wish."""
    rng, number = random.Random(seed), 0
    longest = engine.core.scheduler.limits.max_model_len - 12
    stems = [[rng.randrange(6, 200) for _ in range(longest)] for _ in range(4)]
    for step in range(steps):
        # Often many at once, sometimes none; and now and then as many as may run.
        for _ in range(
            rng.choice((0, 0, 0, 1, 1, 2, 9)) if step % 50 else 2 * engine.core.scheduler.limits.max_running
        ):
            length = min(longest, int(2 ** rng.uniform(0, 9)))
            shared = rng.choice(stems)[: rng.randrange(length)]
            prompt = shared + [rng.randrange(6, 200) for _ in range(length - len(shared))]
            params = SamplingParams(max_tokens=rng.randrange(1, 12), ignore_eos=True, **rng.choice(KINDS))
            if len(engine.core.scheduler.waiting) < 100:
                assert engine.core.add(AddRequest(f"r{number}", prompt, params)) is None
                number += 1
        engine.core.step()
        assert not engine.core.failed_steps, engine.core.last_error
    engine.stream.close()


@pytest.mark.parametrize(
    ("model", "fields", "running", "settings", "steps"),
    [
        pytest.param(random_nemotron_h, {}, 16, {}, STEPS, id="Mamba2", marks=IN_FULL),
        # Behind each number of decodes, up to three, prompts begin at another place between 16 bytes.
        pytest.param(random_nemotron_h, ODD, 5, {"dtype": "bfloat16"}, STEPS, id="odd rows"),
        pytest.param(random_nemotron_h, EXPERTS, 3, {"state_dtype": "float16"}, STEPS, id="experts"),
        pytest.param(
            random_nemotron_h, EXPERTS, 40, {"max_model_len": 100}, STEPS, id="short prompts", marks=IN_FULL
        ),
        pytest.param(random_qwen3_next, {}, 60, {}, STEPS, id="delta"),
        pytest.param(
            random_nemotron_h, {"vocab_size": 100_352}, 60, {}, 60, id="100,352 tokens", marks=IN_FULL
        ),
    ],
)
def test_nothing_is_compiled_in_a_hundred_mixed_steps_and_more(
    tmp_path: Path, model: Any, fields: dict[str, Any], running: int, settings: dict[str, Any], steps: int
) -> None:
    engine = make_engine(
        model(tmp_path / "model", **fields),
        **{
            "max_running_requests": running, "track_interval": 16, "chunked_prefill_tokens": 512,
            "dtype": "float32", "state_dtype": "float32", **settings,
        },
    )  # fmt: skip
    # How many start together must not hang on how fast this machine is just now.
    engine.core.scheduler.admission.budget = None
    runner: Any = engine.core._runner
    with silent_kernels() as prepared:
        assert runner.warm_up(lambda *_: None)
    with silent_kernels() as served:
        mixed_steps(engine, running, steps)
    assert len(served.variants) > 10
    assert [*late(served.variants, prepared.variants)] == []
