"""A measured entry overrules the kernel's default for its GPU and shape alone, and only in what it says."""

import json
from pathlib import Path

import pytest
import torch

from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.fp8.matrix import quantized
from mamba_kernels.fp8.triton import product_call
from mamba_kernels.moe.triton import calls as moe_calls
from mamba_kernels.triton_support import Launch, launch_for, launch_table
from mamba_kernels.triton_support.launch_table import LaunchTrial
from testmodels.experts import ExpertBatch

CPU = torch.device("cpu")
DEFAULT = Launch(num_warps=4, num_stages=2, blocks={"P": 64, "N": 128})


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(
        json.dumps({"scan": {"cpu": {"P64": {"num_warps": 1, "blocks": {"P": 8}}}, "H100": {"P80": {}}}})
    )
    monkeypatch.setattr(launch_table, "TABLE", path)
    monkeypatch.setattr(launch_table, "_table", launch_table._table.__wrapped__)


@pytest.mark.usefixtures("_measured")
def test_an_entry_overrules_what_it_says_for_its_own_shape() -> None:
    assert launch_for("scan", CPU, "P64", DEFAULT) == Launch(1, 2, {"P": 8, "N": 128})
    assert launch_for("scan", CPU, "P80", DEFAULT) == DEFAULT, "measured on another GPU"
    assert launch_for("other", CPU, "P64", DEFAULT) == DEFAULT


def test_the_shipped_table_can_be_read() -> None:
    assert launch_for("nothing", CPU, "", DEFAULT) == DEFAULT


def fp8_shapes(groups: int) -> set[tuple[str, str]]:
    """Return kernel and shape of each launch of a product and of experts whose scales have `groups`."""

    def fp8(weight: torch.Tensor) -> Fp8Matrix:
        rows = quantized(weight, groups)
        return Fp8Matrix(rows.numbers, rows.scales)

    batch = ExpertBatch(4, E=3, d=256, f=256, dtype=torch.bfloat16)
    with LaunchTrial({}) as trial:
        rows = quantized(torch.zeros(4, 256), groups)
        product_call(rows, fp8(torch.zeros(64, 256)), None, torch.empty(4, 64))
        moe_calls(
            batch.hidden, batch.experts, batch.weights, fp8(batch.gate_up), fp8(batch.down),
            batch.activation, torch.empty(4, 256, dtype=torch.bfloat16),
        )  # fmt: skip
    kernels = ("fp8_product", "moe_expand", "moe_project")
    return {(kernel, shape) for kernel, shape in trial.defaults if kernel in kernels}


def test_a_tile_that_was_measured_without_groups_is_not_used_with_groups() -> None:
    one, two = fp8_shapes(1), fp8_shapes(2)
    assert len(one) == len(two) == 3
    assert not one & two
