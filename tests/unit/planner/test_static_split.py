"""The numbers that docs/explanation/planner.md gives for a memory split into fixed pools."""

import json
from pathlib import Path

import pytest

from mamba_planner.arithmetic import kv_bytes_per_token, state_bytes
from mamba_planner.families import model_config_from_hf

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
NANO = model_config_from_hf(json.loads((CONFIGS / "nemotron-nano-9b-v2.json").read_text()))
RATIO = 0.9
# An "80 GB" H100 reports 79.11 GiB; weights are 17.8 GB.
LEFT = int(79.11 * 2**30 * 0.88) - 17_800_000_000
FULL = state_bytes(NANO, "float32", "bfloat16").total
HALF = state_bytes(NANO, "float16", "bfloat16").total
KV = kv_bytes_per_token(NANO, "bfloat16")


def test_the_fixed_split_has_186_exact_and_369_half_width_slots_beside_idle_kv() -> None:
    states = LEFT * RATIO / (1 + RATIO)
    assert [int((states - state) // state) for state in (FULL, HALF)] == [186, 369]
    kv_tokens = LEFT / (1 + RATIO) / KV
    assert kv_tokens == pytest.approx(1.83e6, rel=0.001)


def test_both_pools_fill_together_at_one_length_only() -> None:
    together = 5 * FULL / (RATIO * KV)
    assert together / 1000 == pytest.approx(48.7, abs=0.06)
    sequences = int((LEFT * RATIO / (1 + RATIO) - FULL) // FULL) // 5
    assert sequences == 37
    assert LEFT / (1 + RATIO) / KV / sequences == pytest.approx(49_000, rel=0.02)
