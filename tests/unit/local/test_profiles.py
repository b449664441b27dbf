"""Resource profiles on one machine: `plan` takes all of them, `up` no more than whether there is a GPU."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from mamba_cli.errors import InvalidInput
from mamba_cli.local.bring_up import bring_up
from mamba_cli.local.documents import read_deployments
from mamba_cli.local.plan_source import plan_source
from mamba_cli.local.planning import PlanFlags
from mamba_cli.resource_profiles import known_profiles, of_this_machine
from mamba_planner.cards.gpu_sizes import MIB, MIB_OF
from mamba_planner.cards.shipped_profiles import SHIPPED

VALUES = """
image: {tag: v1}
resourceProfiles:
  ours: {gpus: 1, deviceMemory: 30Gi}
  cpu-small: {gpus: 0, cpu: 9}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, "nvidia-h200")


def written(folder: Path, profile: str, mode: str = "Active") -> Path:
    path = folder / f"{profile}.yaml"
    spec = {"model": {"uri": "builtin://tiny-recall"}, "mode": mode, "resources": {"profile": profile}}
    head = {"apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "MambaDeployment"}
    path.write_text(json.dumps({**head, "metadata": {"name": "a"}, "spec": spec}))
    return path


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values.yaml"
    path.write_text(VALUES)
    return path


def test_a_plan_is_made_for_the_gpu_of_the_profile(file: Path) -> None:
    [outcome] = plan_source(str(file), PlanFlags())

    assert (outcome.device.kind, outcome.device.memory) == ("cuda", MIB_OF["H200"] * MIB)
    assert any("nvidia-h200" in note and "NVIDIA-H200" in note for note in outcome.notes)


def test_what_the_command_line_says_wins(file: Path) -> None:
    [outcome] = plan_source(str(file), PlanFlags(device_memory=20 << 30))
    assert outcome.device.memory == 20 << 30


def test_a_clusters_own_profiles_come_from_the_charts_values(tmp_path: Path, values: Path) -> None:
    profiles = known_profiles(values)

    [outcome] = plan_source(str(written(tmp_path, "ours")), PlanFlags(profiles=profiles))

    assert outcome.device.memory == 30 << 30
    assert str(profiles["cpu-small"].cpu) == "9"
    assert profiles.keys() == {*SHIPPED, "ours"}


def test_an_unknown_profile_is_refused_with_the_way_to_name_a_clusters_own(tmp_path: Path) -> None:
    path = written(tmp_path, "ours")
    with pytest.raises(InvalidInput) as caught:
        read_deployments([path], SHIPPED)
    for words in (str(path), "spec.resources.profile", "nvidia-h200", "--resource-profiles"):
        assert words in str(caught.value)
    assert [one.deployment.name for one in read_deployments([path])] == ["a"]  # who plans nothing needs none


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "no such file"), ("a: b", "no resourceProfiles"), ("resourceProfiles: {a: {b: 1}}", "a.b")],
)
def test_a_file_that_is_no_file_of_profiles_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "profiles.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        known_profiles(path)
    assert "--resource-profiles" in str(caught.value)
    assert says in str(caught.value)


def test_on_this_machine_a_profile_says_whether_there_is_a_gpu_and_no_more(tmp_path: Path) -> None:
    [on_gpu] = read_deployments([written(tmp_path, "nvidia-h200")], of_this_machine(SHIPPED))
    [on_cpu] = read_deployments([written(tmp_path, "cpu-small")], of_this_machine(SHIPPED))

    for one, gpus in ((on_gpu, 1), (on_cpu, 0)):
        spec = one.deployment.spec
        assert spec.resources.gpus == gpus
        assert (spec.memory.device_memory, spec.resources.memory, spec.resources.cpu) == (None, None, None)
        assert spec.scheduling.node_selector == {}


def test_up_plans_for_the_memory_of_this_machine_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mamba_cli.local.bring_up.gpu_memory", lambda: 24 << 30)
    output = io.StringIO()

    bring_up(
        [written(tmp_path, "nvidia-h200", mode="Plan")], host="127.0.0.1", port=0, once=True, demo=False,
        logs=None, console=Console(file=output, width=200),
    )  # fmt: skip

    assert "24.0Gi GPU" in output.getvalue()
    assert "note: a: spec.resources.profile" in output.getvalue()
