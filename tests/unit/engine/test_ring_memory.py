"""Memory of rings: the plan counts what the engine takes, and it is small beside the states."""

import json
from pathlib import Path

import pytest
import torch

from mamba_kernels.state_replay import delta_width, scan_width
from mamba_planner.arithmetic import DTYPE_BYTES, ring_inputs, state_bytes
from mamba_planner.engine_plan import plan_engine
from mamba_planner.families.registry import model_config_from_hf
from mamba_planner.memory import Device
from mamba_planner.workspace import ring_bytes
from mamba_server.model.device_arena import ring_memory
from mamba_settings.engine_settings import EngineSettings

PUBLISHED = Path(__file__).parents[3] / "libs/mamba_planner/published"


def test_the_plan_counts_the_memory_of_rings_that_an_engine_takes() -> None:
    config = model_config_from_hf(json.loads((PUBLISHED / "nemotron-h-8b.json").read_text()))
    rings = ring_memory(config, lanes=64, tokens=8, dtype=torch.bfloat16, device=torch.device("meta"))

    counted = ring_bytes(config, "bfloat16", tokens=8, running=64)
    assert sum(ring.nbytes for ring in rings) == counted
    assert ring_bytes(config, "bfloat16", tokens=0, running=64) == 0
    with_rings, without = (
        plan_engine(
            config,
            EngineSettings(model="any", max_running_requests=64, state_replay=tokens),
            Device("cuda", 80 << 30),
        )
        for tokens in ("8", "auto")
    )
    assert without.arena_bytes - with_rings.arena_bytes == pytest.approx(counted, abs=without.slab_bytes)


def test_an_input_is_what_the_kernels_keep_and_a_small_part_of_a_state() -> None:
    for path in sorted(PUBLISHED.glob("*.json")):
        config = model_config_from_hf(json.loads(path.read_text()))
        if (mamba := config.mamba) is not None:
            width = scan_width(mamba.heads, mamba.head_dim, mamba.groups, mamba.state_size)
        elif (delta := config.gated_delta) is not None:
            width = delta_width(
                delta.value_heads, delta.value_dim, delta.key_heads, delta.key_dim, delta.decays
            )
        else:
            width = 0
        assert ring_inputs(config) == width
        states = state_bytes(config, "float32", "bfloat16")
        inputs = config.recurrent_layers * width * DTYPE_BYTES["bfloat16"]
        assert inputs <= 0.02 * (states.conv + states.ssm), path.stem
