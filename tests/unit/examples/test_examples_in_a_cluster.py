"""Operator's results for the examples: a plan that fits, and commands that name what exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_cluster import FakeCluster
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.documents import load_documents
from mamba_cli.shipped_models import shipped_config
from mamba_operator.memory.verdict import SpecInvalid
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.observation.snapshot import Sources
from mamba_operator.observe import builtin_config
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from operator_objects import NOW, TOKEN, UID, owner, planned

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "examples").glob("*/*.yaml"))
EXAMPLES = [
    pytest.param(file, one, id=f"{file.parent.name}-{one.name}")
    for file in FILES
    for one in load_documents(file.read_text(), str(file))
]
NAMES = {file: {one.name for one in load_documents(file.read_text(), str(file))} for file in FILES}


def gateways_beside(file: Path) -> set[str]:
    """Return the names of the MambaGateways of an example."""
    documents = [yaml.safe_load(each.read_text()) for each in file.parent.glob("gateway/*.yaml")]
    return {one["metadata"]["name"] for one in documents if one["kind"] == "MambaGateway"}


def stored(example: MambaDeployment) -> Manifest:
    """Return the example as the API server has it in the namespace of the user."""
    manifest = example.manifest()
    manifest["metadata"] |= {"namespace": "models", "uid": UID, "generation": 1}
    return manifest


async def reconciled(example: MambaDeployment) -> FakeCluster:
    cluster = FakeCluster(stored(example))
    again = Reconciler(
        cluster,
        OperatorMetrics(),
        PassSettings("test"),
        sources=Sources(shipped=shipped_config),
        runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN),
    )
    # A volume, its loader, and what there is to say of it.
    for _ in range(3):
        await again(Key("models", example.name))
    cluster.calls.clear()
    await again(Key("models", example.name))
    return cluster


@pytest.mark.parametrize(("file", "example"), EXAMPLES)
async def test_an_example_comes_to_rest_with_a_plan_that_fits(file: Path, example: MambaDeployment) -> None:
    cluster = await reconciled(example)

    status = cluster.find(MAMBA_DEPLOYMENT.kind, example.name)["status"]
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert cluster.calls == []
    assert conditions["Planned"] == ("True", "PlanComputed")
    assert conditions["Degraded"] == ("False", "AsExpected")
    plans = [pool["plan"] for pool in status.get("pools") or ()] or [status["plan"]]
    assert all(plan["maxRunningRequests"] >= 1 for plan in plans)
    assert status["url"] == f"http://{example.name}.models.svc/v1"


@pytest.mark.parametrize(("file", "example"), EXAMPLES)
async def test_the_commands_of_the_readme_name_what_the_operator_makes(
    file: Path, example: MambaDeployment
) -> None:
    readme = (file.parent / "README.md").read_text()
    cluster = await reconciled(example)

    names = NAMES[file]
    services = re.findall(r"port-forward service/(\S+) \d+:(\d+)", readme)
    # Where a MambaGateway serves the models, its address is the one to ask.
    assert {name for name, _ in services} == (gateways_beside(file) or names)
    for name, port in services:
        if name == example.name:
            assert int(port) in [one["port"] for one in cluster.find("Service", name)["spec"]["ports"]]
    named = re.findall(r"kubectl (?:get|patch|wait|describe) mdep[ /](\S+)", readme)
    assert set(named) == names
    served = {
        name
        for one in (each.values[1] for each in EXAMPLES if each.values[0] == file)
        for name in (one.served_name, *(adapter.name for adapter in one.spec.model.adapters))
    }
    assert {*re.findall(r'"model": "([^"]+)"', readme)} <= served


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_paths_in_comments_and_readmes_exist(file: Path) -> None:
    readme = file.parent / "README.md"
    for text in (file.read_text(), readme.read_text()):
        for path in re.findall(r"\b(examples/[\w./-]+\.yaml)", text):
            assert (ROOT / path).exists(), path
    for target in re.findall(r"\]\(([^)#:]+)\)", readme.read_text()):
        assert (readme.parent / target).exists(), target


@pytest.mark.parametrize(("file", "example"), EXAMPLES)
def test_the_fields_a_readme_tells_to_change_exist(file: Path, example: MambaDeployment) -> None:
    readme = (file.parent / "README.md").read_text()
    schema = type(example.spec)
    for path in re.findall(r"`(?:spec\.)?((?:stateCache|engine|model|memory|scaling)\.[\w.]+)", readme):
        at: Any = schema
        for name in path.split("."):
            fields = {field.alias: field for field in at.model_fields.values()}
            assert name in fields, path
            annotation = fields[name].annotation
            at = next(
                (
                    one
                    for one in (annotation, *getattr(annotation, "__args__", ()))
                    if hasattr(one, "model_fields")
                ),
                None,
            )


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "tensorParallel": {"engine": {"tensorParallel": 2}},
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_no_readme_advises_what_this_version_refuses(field: str) -> None:
    of = owner()
    of["spec"] |= UNSUPPORTED[field]
    assert isinstance(planned(of).verdict, SpecInvalid)

    for readme in (ROOT / "examples").glob("*/README.md"):
        assert field not in readme.read_text(), readme


def test_the_quick_start_is_planned_in_a_cluster_without_any_engine() -> None:
    [example] = load_documents((ROOT / "examples/01-quick-start/mamba.yaml").read_text(), "quick start")

    assert builtin_config(stored(example), shipped_config) is not None
