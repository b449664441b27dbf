"""A measured entry overrules the kernel's default for its GPU and shape alone, and only in what it says."""

import json
from pathlib import Path

import pytest
import torch

from mamba_kernels.triton_support import Launch, launch_for, launch_table

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
