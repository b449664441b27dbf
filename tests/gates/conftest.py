"""The models the gates run on."""

from pathlib import Path

import pytest
import torch

import mamba_server
from testmodels.checkpoints import random_nemotron_h

# Small tensors gain nothing from threads, and spinning threads on a busy machine cost minutes.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_recall() -> Path:
    """Return the folder of the shipped model."""
    assert mamba_server.__file__ is not None
    return Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with every kind of block, grouped heads, and weights so large that errors show."""
    return random_nemotron_h(tmp_path_factory.mktemp("gates") / "random")
