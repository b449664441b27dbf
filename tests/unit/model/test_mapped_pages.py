"""Weights that were packed or converted are in memory once: the file's pages are given back."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mamba_api.choices import Quantization
from mamba_kernels.dispatch.backend import backend_for
from mamba_planner.families.registry import load_model_config
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.checkpoints import random_nemotron_h

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
CPU = torch.device("cpu")


def resident(path: Path) -> int:
    """Return the bytes of the file that this process has mapped and touched."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            inside = rest.endswith(str(path))
        elif first == "Rss:" and inside:
            found += int(rest.split()[0]) * 1024
    return found


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of 6 MB, most of it in matrices."""
    return random_nemotron_h(tmp_path_factory.mktemp("wide"), vocab_size=24_000)


def test_rows_that_are_given_back_are_in_the_file_still(tmp_path: Path) -> None:
    path, given = tmp_path / "one.safetensors", torch.randn(1000, 999)
    save_file({"one": given}, path)
    with safe_open(path, framework="pt") as file:
        mapped: torch.Tensor = file.get_tensor("one")
        assert torch.equal(mapped, given)
        assert resident(path) > 0.9 * given.nbytes
        give_back(mapped[200:800])
        assert 0.3 * given.nbytes < resident(path) < 0.5 * given.nbytes
        assert torch.equal(mapped, given)


@pytest.mark.parametrize("rows", [lambda whole: whole[:, :2], lambda whole: whole[:0]])
def test_nothing_but_whole_pages_of_rows_in_one_piece_goes(
    rows: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    whole = torch.ones(4000, 7)
    give_back(rows(whole))
    assert bool((whole == 1).all())


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_packed_weights_leave_no_second_copy_in_memory(wide: Path, quantization: Quantization) -> None:
    if backend_for(CPU, torch.float32).library is None:
        pytest.skip("nothing is packed")
    config = load_model_config(wide)
    path = wide / "model.safetensors"
    model = HybridModel.load(config, wide, device=CPU, dtype=torch.float32, quantization=quantization)
    assert model.embedding(torch.arange(3)).shape == (3, config.hidden_size)
    assert resident(path) == 0, "small tensors are copied, and nothing of the file is mapped"


def test_converted_weights_leave_no_second_copy_in_memory(wide: Path) -> None:
    path = wide / "model.safetensors"
    model = HybridModel.load(load_model_config(wide), wide, device=CPU, dtype=torch.float64)
    assert model.dtype is torch.float64
    assert resident(path) < 0.25 * path.stat().st_size
