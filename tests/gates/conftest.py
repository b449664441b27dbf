"""The models the gates run on."""

from pathlib import Path

import pytest
import torch

import mamba_server
from testmodels.checkpoints import LATENT_EXPERTS, random_lfm2, random_nemotron_h, random_olmo_hybrid

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


@pytest.fixture(scope="session")
def lfm2_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose only recurrent state is the window of a convolution."""
    return random_lfm2(tmp_path_factory.mktemp("gates") / "lfm2", num_experts=8)


@pytest.fixture(scope="session")
def olmo_hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of the gated delta rule with negative eigenvalues."""
    return random_olmo_hybrid(tmp_path_factory.mktemp("gates") / "olmo-hybrid")


@pytest.fixture(scope="session")
def latent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose experts work in a width of their own."""
    return random_nemotron_h(tmp_path_factory.mktemp("gates") / "latent", **LATENT_EXPERTS)
