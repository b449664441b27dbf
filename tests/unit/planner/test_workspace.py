"""The workspace grows with what a step may hold, and stops where the engine works in blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mamba_planner import Constraints, Device, MemoryBudget
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import ModelConfig
from mamba_planner.workspace import LOGIT_ROWS, captured_bytes, scanned_chunks, workspace_bytes

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
TOKENS, RUNNING, LONGEST, CHUNK = 2048, 64, 8192, 64


def model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


def workspace(name: str = "nemotron-nano-9b-v2", dtype: str = "bfloat16", **changes: int) -> int:
    given = {"tokens": TOKENS, "running": RUNNING, "longest": LONGEST, "chunk": CHUNK, **changes}
    return workspace_bytes(model(name), dtype, **given)


@pytest.mark.parametrize("name", ["tokens", "running", "longest"])
def test_more_of_anything_never_takes_less(name: str) -> None:
    sizes = [workspace(**{name: 64 << power}) for power in range(8)]
    assert sizes == sorted(sizes)


def test_a_step_of_a_large_model_takes_what_its_scan_holds() -> None:
    config = model("nemotron-nano-9b-v2")
    assert config.mamba is not None
    a_token = workspace(tokens=4 * TOKENS) - workspace(tokens=2 * TOKENS)
    # x, y and their passing copies in float32 at least, and a state for each chunk.
    least = 4 * 4 * config.mamba.inner + config.mamba.inner * config.mamba.state_size * 4 / CHUNK
    assert least < a_token / (2 * TOKENS) < 4 * least


def test_logits_are_bounded_however_many_run() -> None:
    wide = replace(model("nemotron-nano-9b-v2"), vocab_size=1 << 20)
    bounded, more = (
        workspace_bytes(wide, "bfloat16", tokens=TOKENS, running=rows, longest=LONGEST, chunk=CHUNK)
        for rows in (LOGIT_ROWS, 4 * LOGIT_ROWS)
    )
    assert bounded == more


def test_devices_share_it() -> None:
    assert workspace(tensor_parallel=2) < workspace()


def test_few_chunks_of_large_states_are_scanned_together() -> None:
    large, small = model("nemotron-nano-9b-v2").mamba, model("granite-4.0-h-350m").mamba
    assert large is not None
    assert small is not None
    assert 1 <= scanned_chunks(large) < scanned_chunks(small) <= 32


def test_captured_choices_of_a_large_vocabulary_have_memory_of_their_own() -> None:
    tall = replace(model("nemotron-nano-9b-v2"), vocab_size=262_144)
    # Logits of 256 rows as the product gives them and in float32.
    assert captured_bytes(tall, "bfloat16") == 256 * 262_144 * 6
    plans = [
        MemoryBudget.of(each, Constraints(), Device("cuda", 80 << 30), weights=1 << 34, workspace=1 << 30)
        for each in (tall, replace(tall, vocab_size=1 << 10))
    ]
    assert plans[1].arena - plans[0].arena == 256 * (262_144 - 1024) * 6
