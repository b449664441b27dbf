"""Adapters of a MambaDeployment: what is downloaded, what the pods are told, what the plan counts."""

import json
from dataclasses import replace
from typing import Any

import pytest

from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.conditions.status import summarize
from mamba_operator.model.model_cache import commits_in_use
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import trouble
from mamba_operator.render import render
from mamba_operator.render.context import Context
from mamba_operator.render.loader import KEEP, loader_job
from mamba_planner.adapter_bank import bank_bytes
from mamba_planner.families import model_config_from_hf
from model_loads import COMMIT, REPORT, cached, grown, job_of, loader_pod, with_status
from operator_objects import NOW, applied, fitting_owner, nano_config, owner, planned, snapshot

SQL, FRENCH = {"name": "sql", "uri": "hf://org/sql"}, {"name": "french", "uri": "pvc://files/french"}
PIN = "5" * 40


def child(children: list[Manifest], kind: str, name: str) -> Any:
    [found] = [one for one in children if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod(children: list[Manifest], name: str) -> Any:
    return child(children, "Deployment", name)["spec"]["template"]


def environment(container: Manifest) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def after_the_download(of: Manifest, report: str) -> list[Manifest]:
    """Return the children once the loader has ended with this report."""
    children = grown(of, applied(of))
    children = with_status(children, "Complete")
    done = [loader_pod(job_of(children), "Succeeded", report)]
    return grown(of, grown(of, children, pods=done), pods=done)


def test_engines_load_the_adapters_that_the_job_downloaded_and_gateways_wait_for_them() -> None:
    of = cached(model={"adapters": [SQL, FRENCH]})
    children = grown(of, applied(of))
    job = job_of(children)
    loader = job["spec"]["template"]["spec"]["containers"][0]
    assert environment(loader)["MAMBASERVE_DOWNLOAD_ADAPTER"] == "hf://org/sql"
    served = after_the_download(of, replace(REPORT, adapters=(PIN,)).text())
    settings = json.loads(child(served, "ConfigMap", "nano-engine")["data"]["engine.json"])
    assert settings["lora"] == [f"sql=hf://org/sql@{PIN}", "french=pvc://files/french"]
    engine = pod(served, "nano-engine")
    mounts = {one["mountPath"] for one in engine["spec"]["containers"][0]["volumeMounts"]}
    assert "/models/files" in mounts
    claims = [one.get("persistentVolumeClaim", {}).get("claimName") for one in engine["spec"]["volumes"]]
    assert "files" in claims
    gateway = pod(served, "nano")["spec"]["containers"][0]
    assert environment(gateway)["MAMBASERVE_ADAPTER_NAME"] == "sql french"


def test_no_copy_of_an_adapter_that_engines_read_makes_room_for_another() -> None:
    of = cached(model={"adapters": [SQL]})
    served = after_the_download(of, replace(REPORT, adapters=(PIN,)).text())
    changed = cached(model={"adapters": [{"name": "sql", "uri": "hf://org/sql-v2"}]})
    plan = planned(changed, served)
    [job] = [one.manifest for one in plan.applies if one.manifest["kind"] == "Job"]
    kept = environment(job["spec"]["template"]["spec"]["containers"][0])[KEEP]
    assert {COMMIT, PIN} <= set(kept.split())


def test_copies_stay_that_engines_read_by_their_settings() -> None:
    of = cached(model={"adapters": [SQL]})
    data = {"engine.json": json.dumps({"lora": [f"sql=hf://org/sql@{PIN}", "x=/a/folder"]})}
    config = {"kind": "ConfigMap", "metadata": {"name": "nano-engine"}, "data": data}
    context = Context(MambaDeployment.model_validate({k: v for k, v in of.items() if k != "status"}), 1, None)
    assert commits_in_use(context, snapshot(of, [config])) == {PIN}


def test_a_rename_downloads_nothing_again_and_a_model_without_adapters_is_loaded_as_before() -> None:
    def job_name(adapters: list[dict[str, str]]) -> str:
        of = cached(model={"adapters": adapters})
        name: str = job_of(grown(of, applied(of)))["metadata"]["name"]
        return name

    assert job_name([SQL]) == job_name([{**SQL, "name": "other"}])
    assert job_name([SQL]) != job_name([]) == job_name([FRENCH])


@pytest.mark.parametrize(("most", "places", "expert_rank"), [(None, 4, 0), (8, 8, 0), (2, 2, 4)])
def test_the_plan_counts_the_places_of_adapters_to_the_byte(
    most: int | None, places: int, expert_rank: int
) -> None:
    model: dict[str, Any] = {"uri": "hf://org/model", "config": nano_config(), "adapters": [SQL, FRENCH]}
    model |= {"maxAdapterRank": 32, **({"maxAdapters": most} if most else {})}
    if expert_rank:
        model["maxAdapterExpertRank"] = expert_rank
    of = fitting_owner(model=model)
    status = summarize(snapshot(of), planned(of), (), now=NOW)
    assert status is not None
    assert status.plan is not None
    ledger = {line.item: line.bytes for line in status.plan.ledger}
    config = model_config_from_hf(nano_config(), "test")
    assert ledger["places for adapters"] == bank_bytes(
        config, config.dtype, places=places, rank=32, expert_rank=expert_rank
    )


def test_the_secret_of_an_adapters_store_is_read_and_may_lack_its_keys() -> None:
    model = {
        "uri": "s3://bucket/model", "secretRef": {"name": "keys"},
        "adapters": [{"name": "sql", "uri": "https://files.example.com/sql/"}],
    }  # fmt: skip
    of = MambaDeployment.model_validate({k: v for k, v in owner(model=model).items() if k != "status"})
    [container] = pod([*render(Context(of, 1, None))], "nano-engine")["spec"]["containers"]
    secrets = {
        name: value["secretKeyRef"]
        for name, value in environment(container).items()
        if value and "secretKeyRef" in value
    }
    assert secrets["MAMBASERVE_MODEL_TOKEN"]["optional"]
    assert "optional" not in secrets["AWS_ACCESS_KEY_ID"]
    assert loader_job(Context(of, 1, None), "0")["kind"] == "Job"


def test_an_adapter_that_engines_cannot_load_is_named_with_its_own_reason() -> None:
    ended = {"terminated": {"exitCode": 2, "message": "Error: adapter sql: hf://org/sql: no such repository"}}
    broken = {
        "metadata": {"name": "nano-engine-x", "labels": {"app.kubernetes.io/component": "engine"}},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "engine", "restartCount": 4, "ready": False, "lastState": ended,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                }
            ],
        },
    }  # fmt: skip
    found = trouble([broken], NOW)
    assert found is not None
    assert found.reason == "AdapterNotLoaded"
    assert "adapter sql" in found.message
    assert "spec.model.adapters" in found.message
