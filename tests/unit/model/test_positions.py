"""Rotary positions scaled for long texts are those of transformers, far beyond the trained length."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mamba_planner.families.registry import load_model_config
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.batches import Driver, Run, Sequence, poisoned_views
from testmodels.checkpoints import random_bamba, random_lfm2, random_qwen3_5

TRAINED, STEPS = 64, 24
SHORT = [1.0 + 0.3 * pair for pair in range(6)]
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "yarn with all its fields": {
        "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "mscale": 0.8,
        "mscale_all_dim": 0.5,
    },
    "yarn with a factor of attention": {"factor": 4.0, "attention_factor": 1.3},
    "dynamic": {"factor": 4.0},
    "longrope": {"short_factor": SHORT, "long_factor": [4.0 * each for each in SHORT], "factor": 4.0},
}  # fmt: skip


def compare(directory: Path, text: int) -> None:
    """Compare logits of a text told in three pieces and some single tokens with one pass of transformers."""
    from transformers import AutoModelForCausalLM

    config = load_model_config(directory)
    ours = HybridModel.load(config, directory, device=torch.device("cpu"), dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokens = torch.randint(0, 256, (text,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens]), use_cache=False).logits[0]
    cache = poisoned_views(config, slabs=3, pages=text // 16 + 2, page_size=16, dtype=torch.float32)
    sequence = Sequence(tokens, slot=1, pages=list(range(1, text // 16 + 2)))
    driver, prompt = Driver(ours, cache, guard=False), text - STEPS
    cuts = [prompt // 3, prompt // 3, prompt - 2 * (prompt // 3)]
    got = [driver.step([Run(sequence, count, logits="all")]) for count in cuts]
    got += [driver.step([Run(sequence, 1, decode=True, logits="all")]) for _ in range(STEPS)]
    torch.testing.assert_close(torch.cat(got), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", SCALED)
def test_scaled_positions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    kind = name.split()[0]
    section: dict[str, Any] = {"rope_type": kind, "rope_theta": 1000.0, **SCALED[name]}
    longest = 4 * TRAINED
    if kind in ("llama3", "yarn", "longrope"):
        section["original_max_position_embeddings"] = TRAINED
    if kind == "dynamic":
        longest = TRAINED
    layers = ["conv", "full_attention", "conv", "full_attention"]
    directory = random_lfm2(
        tmp_path, num_hidden_layers=4, layer_types=layers, rope_parameters=section,
        max_position_embeddings=longest,
    )  # fmt: skip
    config = load_model_config(directory)
    served = TRAINED if kind in ("dynamic", "longrope") else 4 * TRAINED
    assert config.max_position == served
    assert config.position_limit == (served if kind in ("dynamic", "longrope") else None)
    compare(directory, served)


@pytest.mark.parametrize("write", [random_bamba, random_qwen3_5])
def test_a_rotated_part_of_a_head_is_scaled_too(write: Any, tmp_path: Path) -> None:
    section = {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 1000.0, "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": TRAINED,
    }  # fmt: skip
    directory = write(tmp_path, rope_parameters=section, max_position_embeddings=TRAINED)
    assert load_model_config(directory).max_position == 4 * TRAINED
    compare(directory, 4 * TRAINED)
