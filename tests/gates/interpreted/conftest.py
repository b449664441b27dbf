"""Guard: only the process that `test_interpreted_kernels.py` starts may run these tests."""

import os
from pathlib import Path

import pytest

from testmodels.checkpoints import random_granite

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted_language

    interpreted_language.install()
    collect_ignore_glob = []
else:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with one layer of each kind: the interpreter takes as long for each further one."""
    layers = {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
    return random_granite(tmp_path_factory.mktemp("two-layers"), **layers)
