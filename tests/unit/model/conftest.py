"""Checkpoints and loaded models shared by the model tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mamba_planner.families.registry import load_model_config
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.checkpoints import random_nemotron_h

# Small tensors gain nothing from threads, and spinning threads on a busy machine cost minutes.
torch.set_num_threads(1)

LoadModel = Callable[..., HybridModel]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one small Nemotron-H with every kind of block it has."""
    return random_nemotron_h(tmp_path_factory.mktemp("checkpoints") / "nemotron")


@pytest.fixture
def load_model() -> LoadModel:
    def load(directory: Path, dtype: torch.dtype = torch.float32, **more: bool) -> HybridModel:
        config = load_model_config(directory)
        return HybridModel.load(config, directory, device=torch.device("cpu"), dtype=dtype, **more)

    return load
