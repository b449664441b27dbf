"""The bench tells times of what is right alone, beside the machine's limits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mamba_kernels.bench import __main__ as bench
from mamba_kernels.bench import machine, measurement, timing
from mamba_kernels.bench.model_shape import MODEL_SHAPES, ModelShape
from mamba_kernels.dispatch.backend import INTERPRETER, Backend, backend_for
from mamba_kernels.dispatch.operators import REFERENCE
from mamba_kernels.kernel_choice import VARIABLE

CPU = torch.device("cpu")
SMALL = ModelShape(H=4, P=8, N=16, G=2, d=24, heads=4, kv_heads=2, head_dim=16, vocabulary=300)
OPERATORS = {
    "state_update", "ssd_prefill", "conv1d_update", "conv1d_prefill", "paged_attention", "kv_write",
    "rms_norm", "gated_norm", "sample", "gated_delta_update", "gated_delta_prefill", "moe", "rope",
    "activate", "route",
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODEL_SHAPES, "small", SMALL)
    monkeypatch.setattr(timing, "MEASUREMENT_SECONDS", 0.0)


def test_every_operator_is_measured_and_told_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--device", "cpu", "--model", "small", "--out", str(tmp_path / "out.json")]) == 0
    told = json.loads((tmp_path / "out.json").read_text())
    assert {each["operator"] for each in told["results"]} == OPERATORS
    assert all(each["seconds"] > 0 and each["share_of_copy"] > 0 for each in told["results"])
    chosen = backend_for(CPU, torch.bfloat16)
    assert told["kernels"] == chosen.name
    beside_torch = {each["operator"] for each in told["results"] if each.get("times_torch", 0) > 0}
    assert beside_torch == (
        {"gated_delta_update", "gated_delta_prefill", "kv_write", "rope"} if chosen.library else set()
    )
    assert told["machine"]["copy_bytes_per_second"] > 0
    assert torch.__version__.startswith(told["machine"]["versions"]["torch"])
    assert len(capsys.readouterr().err.splitlines()) == 1 + len(told["results"])


def test_what_is_wrong_has_no_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(*arguments: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = REFERENCE.rms_norm(*arguments)
        return out * 1.03 if out.dtype != torch.float64 else out

    made = Backend("nearly", replace(REFERENCE, rms_norm=nearly))
    monkeypatch.setattr(bench, "backend_for", lambda device, dtype: made)
    assert bench.main(["--device", "cpu", "--model", "small", "--operator", "rms_norm"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result.keys() == {"operator", "shape", "error"}


def test_the_least_bytes_are_those_of_what_is_read_and_written() -> None:
    """Check the operators whose minimum is the size of all their tensors."""
    cases = {case.operator: case for case in bench.cases_of("small", CPU, small=True)}
    update = cases["state_update"]
    given = update.inputs(update.size)
    states = given["state"][1 : update.size + 1].nbytes * 3
    assert update.least_bytes == states + 2 * given["out"].nbytes + given["dt"].nbytes + (
        given["mixed"].nbytes - given["out"].nbytes
    )
    write = cases["kv_write"]
    given = write.inputs(write.size)
    assert write.least_bytes == 2 * (given["key"].nbytes + given["value"].nbytes)
    rope = cases["rope"]
    assert rope.least_bytes == 2 * rope.inputs(rope.size)["x"].nbytes


def test_a_device_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    for option in (["--device", "cuda"], ["--tune"]):
        assert bench.main(option) == 2
    assert capsys.readouterr().err.count("CUDA device") == 2


def test_kernels_that_are_not_for_this_device_are_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.delenv(INTERPRETER, raising=False)
    assert bench.main(["--device", "cpu"]) == 2
    assert "MAMBASERVE_KERNELS=triton needs a CUDA device" in capsys.readouterr().err


def test_a_peer_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    (case, *_) = (each for each in bench.cases_of("small", CPU, small=True) if each.peer is not None)
    limits = machine.Machine("cpu", "", "", {}, 1e9, 1e12)

    def absent(_: object) -> None:
        raise ImportError("No module named 'mamba_ssm'")

    told = measurement.measure_case(replace(case, peer=absent), REFERENCE, limits, CPU, peer=True)
    assert "mamba_ssm" in told["peer_error"]
    assert told["seconds"] > 0
