"""Memory for drafts: the plan counts what the engine takes, and it is small beside the states."""

import json
from pathlib import Path

import pytest

from engines import make_engine
from mamba_planner.arithmetic import DTYPE_BYTES, mixer_inputs, state_bytes
from mamba_planner.engine_plan import plan_engine
from mamba_planner.families.registry import load_model_config, model_config_from_hf
from mamba_planner.memory import Device
from mamba_planner.workspace import draft_bytes
from mamba_settings.engine_settings import EngineSettings
from testmodels.checkpoints import random_nemotron_h, random_qwen3_next

PUBLISHED = Path(__file__).parents[3] / "libs/mamba_planner/published"


@pytest.mark.parametrize("write", [random_nemotron_h, random_qwen3_next])
def test_the_plan_counts_the_memory_of_drafts_that_the_engine_takes(write: object, tmp_path: Path) -> None:
    model = write(tmp_path / "model")  # type: ignore[operator]
    engine = make_engine(
        model, speculation="ngram", speculative_tokens=3, max_running_requests=4, dtype="float32",
        state_dtype="float32",
    )  # fmt: skip
    memory = engine.core._runner._cache.replay
    tensors = [*memory.ring, memory.conv, memory.ssm]

    counted = draft_bytes(load_model_config(model), "float32", drafts=3, running=4)
    # A row of each drafted token in the counts for penalties: 4 bytes for the answer, 1 for the prompt.
    counts = 4 * 3 * engine.model.vocab_size * (4 + 1)
    assert sum(tensor.nbytes for tensor in tensors) + counts == counted
    assert engine.core.cache.batch.free_lanes == 4
    with_drafts, without = (
        plan_engine(
            load_model_config(model),
            EngineSettings(model=str(model), dtype="float32", max_running_requests=4, **more),
            Device("cpu", 8 << 30),
        )
        for more in ({"speculation": "ngram", "speculative_tokens": 3}, {})
    )
    assert without.arena_bytes - with_drafts.arena_bytes == pytest.approx(counted, abs=without.slab_bytes)


# The windows of LFM2 are smaller than the inputs of a token, and both are small beside everything else.
@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PUBLISHED.glob("*.json")) if not path.stem.startswith("lfm2")],
    ids=lambda path: path.stem,
)
def test_the_inputs_of_a_token_are_a_small_part_of_a_state(path: Path) -> None:
    config = model_config_from_hf(json.loads(path.read_text()))
    inputs = config.recurrent_layers * mixer_inputs(config) * DTYPE_BYTES["bfloat16"]
    states = state_bytes(config, "float32", "bfloat16")

    assert 0 < inputs <= 0.1 * (states.conv + states.ssm)


def test_without_speculation_nothing_is_reserved() -> None:
    config = model_config_from_hf(json.loads((PUBLISHED / "nemotron-h-8b.json").read_text()))

    assert draft_bytes(config, "bfloat16", drafts=0, running=32) == 0
