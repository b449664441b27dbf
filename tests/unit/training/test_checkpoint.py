"""The checkpoint folder: what is written is what is read, in today's field names and the published."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training.tiny_recall import checkpoint
from training.tiny_recall.model import CHUNK, Shape, TinyHybrid

SMALL = Shape(hidden=32, pattern="M*-", heads=2, head_dim=16, state=8, attention_heads=2, kv_heads=1)


@pytest.fixture
def model() -> TinyHybrid:
    torch.manual_seed(0)
    return TinyHybrid(SMALL)


def test_a_written_model_reads_back_with_the_same_logits(model: TinyHybrid, tmp_path: Path) -> None:
    checkpoint.write(model, tmp_path)
    ids = torch.arange(CHUNK)[None]
    with torch.no_grad():
        assert torch.equal(checkpoint.read(tmp_path, SMALL)(ids), model(ids))


def test_reading_into_another_shape_is_an_error(model: TinyHybrid, tmp_path: Path) -> None:
    checkpoint.write(model, tmp_path)
    with pytest.raises(RuntimeError, match="size mismatch"):
        checkpoint.read(tmp_path, Shape(hidden=64, pattern="M*-"))


def test_a_missing_folder_is_made_and_an_old_checkpoint_replaced(model: TinyHybrid, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    checkpoint.write(model, folder)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    checkpoint.write(model, folder)
    assert not load_file(folder / "model.safetensors")["lm_head.weight"].any()


def test_the_folder_holds_the_six_files_of_a_published_checkpoint(model: TinyHybrid, tmp_path: Path) -> None:
    checkpoint.write(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }


def test_tensors_carry_the_published_names_in_float32(model: TinyHybrid, tmp_path: Path) -> None:
    checkpoint.write(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[0] for name in tensors} == {"backbone", "lm_head"}
    assert "backbone.layers.0.mixer.conv1d.weight" in tensors
    assert tuple(tensors["backbone.layers.0.mixer.conv1d.weight"].shape) == (SMALL.conv, 1, SMALL.kernel)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_both_spellings_of_the_layer_pattern_agree() -> None:
    written = checkpoint.configuration(SMALL)
    assert written["hybrid_override_pattern"] == "M*-"
    assert written["layers_block_type"] == ["linear_attention", "full_attention", "mlp"]
    assert written["num_hidden_layers"] == 3


def test_transformers_reads_the_pattern_from_either_spelling() -> None:
    from transformers import NemotronHConfig

    written = checkpoint.configuration(SMALL)
    kinds = ["linear_attention", "full_attention", "mlp"]
    for dropped in ("hybrid_override_pattern", "layers_block_type"):
        read = NemotronHConfig(**{name: value for name, value in written.items() if name != dropped})
        assert read.layers_block_type == kinds


def test_the_configuration_is_strict_json() -> None:
    text = json.dumps(checkpoint.configuration(Shape()), allow_nan=False)
    assert json.loads(text)["model_type"] == "nemotron_h"


def test_the_end_of_a_turn_ends_generation(model: TinyHybrid, tmp_path: Path) -> None:
    checkpoint.write(model, tmp_path)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert generation["eos_token_id"] == vocabulary["<|end|>"]
    assert generation["pad_token_id"] == vocabulary["<|pad|>"]
