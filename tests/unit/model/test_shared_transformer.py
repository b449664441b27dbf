"""Which tensors the layers of a Zamba2 share, whatever the files repeat."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mamba_planner.families.registry import load_model_config
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.checkpoints import random_zamba2

BLOCK = "model.layers.{}.shared_transformer."


def repeated(directory: Path) -> Path:
    """Write a checkpoint that holds the tensors of the first block under its second user, too."""
    file = random_zamba2(directory) / "model.safetensors"
    tensors = load_file(file)
    first, later = BLOCK.format(1), BLOCK.format(4)
    assert not any(name.startswith(later) for name in tensors)
    again = {later + name.removeprefix(first): tensor.clone() for name, tensor in tensors.items()
             if name.startswith(first)}  # fmt: skip
    save_file({**tensors, **again}, file)
    return file


def load(file: Path) -> HybridModel:
    directory = file.parent
    config = load_model_config(directory)
    return HybridModel.load(config, directory, device=torch.device("cpu"), dtype=torch.float32)


def test_files_may_repeat_a_block_for_each_layer_that_uses_it(tmp_path: Path) -> None:
    load(repeated(tmp_path))


def test_layers_that_share_a_block_by_the_configuration_alone_are_refused(tmp_path: Path) -> None:
    file = repeated(tmp_path)
    name = BLOCK.format(4) + "pre_ff_layernorm.weight"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name] + 1}, file)
    with pytest.raises(WeightsError, match=r"layers\.4\..*pre_ff_layernorm.*layers\.1\."):
        load(file)
