"""Inputs of `plan`: the memory, the types, the flags that win, and the JSON output."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.local import planning
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.planning import PlanFlags, PlanOutcome, plan_deployment, plan_directory
from mamba_cli.local.unit import local_settings
from mamba_planner.arithmetic import weights_bytes
from mamba_planner.draft_models import draft_model_memory
from mamba_planner.memory_plan import LedgerLine
from mamba_planner.planner import DRAFT_MODEL
from model_configs import unserved_config

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
GIB = 1 << 30


def outcome(flags: PlanFlags | None = None, **spec: Any) -> PlanOutcome:
    config = json.loads((CONFIGS / "nemotron-nano-9b-v2.json").read_text())
    body = {"metadata": {"name": "one"}, "spec": {"model": {"uri": "hf://a/b", "config": config}, **spec}}
    loaded = LoadedDeployment(Path("f.yaml"), MambaDeployment.model_validate(body))
    return plan_deployment(loaded, flags or PlanFlags())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "granite"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "granite-4.0-h-350m.json").read_text())
    return folder


def test_a_plan_says_whether_its_model_can_be_served(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(unserved_config()))
    served = outcome(memory={"deviceMemory": "80Gi"}).to_json()
    planned_only = plan_directory(tmp_path, PlanFlags(device_memory=80 * GIB)).to_json()

    assert (served["fits"], served["served"], "notServedBecause" in served) == (True, True, False)
    assert (planned_only["fits"], planned_only["served"]) == (True, False)
    assert "gelu" in planned_only["notServedBecause"]


def test_a_file_that_asks_for_a_gpu_of_no_size_is_planned_for_one_that_the_plan_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "gpu_memory", lambda: None)
    found = outcome()
    assert (found.device.kind, found.device.memory) == ("cuda", 80 * GIB)
    [note] = [note for note in found.notes if "assumed" in note]
    assert "spec.memory.deviceMemory or --device-memory" in note
    assert note in found.to_json()["plan"]["notes"]


@pytest.mark.parametrize(
    ("flags", "spec", "memory"),
    [
        (PlanFlags(), {"memory": {"deviceMemory": "48Gi"}}, 48 * GIB),
        (PlanFlags(device_memory=64 * GIB), {"memory": {"deviceMemory": "48Gi"}}, 64 * GIB),
        (PlanFlags(device_memory=64 * GIB), {}, 64 * GIB),
    ],
)
def test_told_memory_is_not_noted_and_the_flag_wins(
    flags: PlanFlags, spec: dict[str, Any], memory: int
) -> None:
    found = outcome(flags, **spec)
    assert found.device.memory == memory
    assert not any("assumed" in note for note in found.notes)


@pytest.mark.parametrize(
    ("flags", "gpus", "kind"),
    [
        (PlanFlags(), 1, "cuda"),
        (PlanFlags(), 0, "cpu"),
        (PlanFlags(gpus=0), 1, "cpu"),
        (PlanFlags(gpus=1), 0, "cuda"),
    ],
)
def test_the_kind_of_device_follows_the_number_of_gpus(flags: PlanFlags, gpus: int, kind: str) -> None:
    assert outcome(flags, resources={"gpus": gpus}, memory={"deviceMemory": "80Gi"}).device.kind == kind


def test_a_machine_that_does_not_tell_its_memory_is_a_failure_with_the_way_out(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold() -> int:
        raise OSError("/proc/meminfo has no line MemAvailable")

    monkeypatch.setattr("mamba_cli.local.planning.available_bytes", untold)
    with pytest.raises(RunFailed, match=r"cannot read the free memory .* give --device-memory"):
        plan_directory(directory, PlanFlags(gpus=0))
    assert plan_directory(directory, PlanFlags(gpus=0, device_memory=8 * GIB)).plan is not None


def test_a_plan_that_does_not_fit_says_in_json_how_much_is_missing() -> None:
    shown = outcome(PlanFlags(device_memory=16 * GIB)).to_json()
    assert (shown["fits"], shown["plan"]) == (False, None)
    assert shown["haveBytes"] == int(16 * GIB * 0.9)
    assert shown["needBytes"] > shown["haveBytes"]
    assert "weights" in shown["reason"]
    assert shown["smallestSize"] == "23028Mi"
    assert outcome(PlanFlags(device_memory=16 * GIB, utilization=0.01)).to_json()["smallestSize"] is None


def test_a_plan_that_fits_says_nothing_of_missing_bytes() -> None:
    shown = outcome(PlanFlags(device_memory=80 * GIB)).to_json()
    assert shown["fits"]
    assert not {"reason", "needBytes", "haveBytes", "smallestSize"} & set(shown)
    json.dumps(shown)


def test_the_bytes_of_a_state_are_those_of_the_type_that_is_planned() -> None:
    def state(**cache: str) -> int:
        return int(
            outcome(PlanFlags(device_memory=80 * GIB), stateCache=cache).to_json()["model"]["stateBytes"]
        )

    narrow, wide = state(stateDtype="float16"), state(stateDtype="float32")
    assert narrow < wide
    # The windows keep the type of the activations: only the SSM part halves.
    assert narrow > wide / 2


def test_weights_without_files_are_counted_in_the_type_they_are_loaded_as() -> None:
    def weights(dtype: str) -> int:
        made = outcome(PlanFlags(device_memory=160 * GIB), engine={"dtype": dtype})
        assert (
            "the size of the weights follows from the parameter count, because no files tell it" in made.notes
        )
        return made.weights

    assert weights("float32") == 2 * weights("bfloat16") == 2 * weights("Auto")


def test_true_weights_are_those_of_the_files_and_noted_no_more(directory: Path) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [1001], "data_offsets": [0, 2002]}}).encode()
    (directory / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2002))
    found = plan_directory(directory, PlanFlags(device_memory=8 * GIB))
    assert found.weights == 2002
    assert not any("by parameter count" in note for note in found.notes)


def test_a_directory_is_called_by_its_name_however_it_was_reached(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    flags = PlanFlags(device_memory=8 * GIB)
    assert plan_directory(Path(), flags).name == plan_directory(directory, flags).name == "granite"


def test_flags_that_cannot_be_planned_are_wrong_usage(directory: Path) -> None:
    with pytest.raises(InvalidInput, match="utilization"):
        plan_directory(directory, PlanFlags(device_memory=8 * GIB, utilization=1.5))


def test_a_utilization_of_the_flag_wins_over_the_file() -> None:
    half = outcome(PlanFlags(device_memory=80 * GIB, utilization=0.5), memory={"utilization": 0.8})
    assert half.plan is not None
    assert half.plan.budget_bytes == 40 * GIB


def test_the_draft_model_of_a_file_is_planned_and_named_to_the_engine(directory: Path) -> None:
    config = json.loads((CONFIGS / "granite-4.0-h-350m.json").read_text())
    spec = {
        "model": {"uri": "hf://a/b", "config": config, "maxModelLen": 4096},
        "engine": {"speculation": f"draft=file://./{directory.name}", "maxRunningRequests": 4},
        "memory": {"deviceMemory": "48Gi"},
        "resources": {"gpus": 0},
    }
    body = {"metadata": {"name": "one"}, "spec": spec}
    loaded = LoadedDeployment(directory.parent / "f.yaml", MambaDeployment.model_validate(body))
    found = plan_deployment(loaded, PlanFlags())
    assert found.plan is not None
    memory = draft_model_memory(found.model, found.model.draft_model, found.constraints, "cpu", 4)
    assert memory.weights == weights_bytes(found.model, "bfloat16", on_cpu=True)
    assert LedgerLine(DRAFT_MODEL, memory.bytes) in found.plan.ledger

    settings = local_settings(loaded, found.plan, name="one", device="cpu", port=1, admin_port=2)
    assert settings.draft_model == str(directory)
    lost = {**spec, "engine": {"speculation": "draft=file://./none"}}
    body = {"metadata": {"name": "one"}, "spec": lost}
    with pytest.raises(InvalidInput, match=r"spec\.engine\.speculation: .*none does not exist"):
        plan_deployment(replace(loaded, deployment=MambaDeployment.model_validate(body)), PlanFlags())
