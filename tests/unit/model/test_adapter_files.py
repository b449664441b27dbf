"""Adapters are read as PEFT writes them, and what this version does not compute is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mamba_server.model.adapters.adapter_files import AdapterWeights, StackedLowRank
from mamba_server.model.checkpoint.errors import AdapterError
from testmodels.adapters import write_adapter

NAMES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj")
SHAPES = dict.fromkeys(NAMES, (6, 5))


@pytest.mark.parametrize("targets", [["q_proj", "up_proj"], r".*\.(q|up)_proj", "all-linear", [*NAMES]])
@pytest.mark.parametrize("prefix", ["", "model.language_model."])
def test_targets_are_named_by_their_last_parts_or_by_a_regular_expression(
    tmp_path: Path, targets: Any, prefix: str
) -> None:
    shapes = {name.removeprefix("model." if prefix else ""): shape for name, shape in SHAPES.items()}
    if prefix and targets == [*NAMES]:
        targets = [f"{prefix}{name}" for name in shapes]
    adapter = AdapterWeights.read(write_adapter(tmp_path, shapes, prefix=prefix, target_modules=targets))
    assert set(adapter.modules) == {"layers.0.self_attn.q_proj", "layers.1.mlp.up_proj"}


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({"lora_alpha": 12}, 3.0),
        ({"lora_alpha": 12, "use_rslora": True}, 6.0),
        ({"lora_alpha": 12, "alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"r": 7, "lora_alpha": 12, "rank_pattern": {r"layers\.\d+\..*": 4}}, 3.0),
    ],
)
def test_the_scale_is_that_of_ranks_and_alphas_of_the_module(
    tmp_path: Path, fields: dict[str, Any], scale: float
) -> None:
    directory = write_adapter(tmp_path, {NAMES[0]: (6, 5)}, rank=4, **fields)
    second = load_file(directory / "adapter_model.safetensors")[f"base_model.model.{NAMES[0]}.lora_B.weight"]
    change = AdapterWeights.read(directory).modules["layers.0.self_attn.q_proj"]
    assert torch.allclose(change.second, second * scale)


@pytest.mark.parametrize(
    "fields",
    [
        {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"bias": "all"}, {"fan_in_fan_out": True},
        {"lora_bias": True}, {"peft_type": "LOHA"}, {"layer_replication": [[0, 4]]},
        {"trainable_token_indices": [1]}, {"init_lora_weights": "pissa"}, {"a_new_field": {"x": 1}},
        {"target_parameters": "experts.gate_up_proj"}, {"r": 0}, {"target_modules": []},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_a_field_that_is_not_served_is_refused_by_its_name(tmp_path: Path, fields: dict[str, Any]) -> None:
    directory = write_adapter(tmp_path, SHAPES, **fields)
    with pytest.raises(AdapterError, match=next(iter(fields))):
        AdapterWeights.read(directory)


def renamed(directory: Path, old: str, new: str) -> None:
    file = directory / "adapter_model.safetensors"
    save_file({name.replace(old, new): tensor for name, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("q_proj.lora_A", "q_proj.lora_C", r"q_proj\.lora_.* is not served"),
        ("q_proj.lora_B", "q_proj.lora_magnitude_vector", "is not served|has no lora_B"),
        ("q_proj", "o_proj", "target_modules does not name"),
        ("base_model.model.", "", "is not served"),
    ],
)
def test_a_tensor_that_has_no_place_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    renamed(write_adapter(tmp_path, SHAPES), old, new)
    with pytest.raises(AdapterError, match=words):
        AdapterWeights.read(tmp_path)


def test_missing_damaged_and_contradicting_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="save_pretrained"):
        AdapterWeights.read(tmp_path)
    file, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    write_adapter(tmp_path, SHAPES, r=5)
    with pytest.raises(AdapterError, match="their rank is 5"):
        AdapterWeights.read(tmp_path)
    write_adapter(tmp_path, SHAPES, target_modules=["q_proj", "up_proj", "v_proj"])
    with pytest.raises(AdapterError, match="no tensor of the target module 'v_proj'"):
        AdapterWeights.read(tmp_path)
    write_adapter(tmp_path, SHAPES, size=float("inf"))
    with pytest.raises(AdapterError, match="not finite"):
        AdapterWeights.read(tmp_path)
    config.write_text(json.dumps([1]))
    with pytest.raises(AdapterError, match="no JSON object"):
        AdapterWeights.read(tmp_path)
    write_adapter(tmp_path, SHAPES)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors: the file cannot be read"):
        AdapterWeights.read(tmp_path)
    file.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(AdapterError, match="safe_serialization"):
        AdapterWeights.read(tmp_path)


@pytest.mark.parametrize(
    ("shape", "experts", "words"),
    [((8, 8), 3, "is square"), ((8, 6), 4, "is for 3 experts, and the model has 4")],
)
def test_a_change_of_all_experts_that_cannot_be_told_apart_or_counted_is_refused(
    shape: tuple[int, int], experts: int, words: str
) -> None:
    outputs, inputs = shape
    change = StackedLowRank(torch.zeros(3 * 2, inputs), torch.zeros(outputs, 2 * 3), 2)
    with pytest.raises(AdapterError, match=words):
        change.split("experts.down_proj", experts, shape)
