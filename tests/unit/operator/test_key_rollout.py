"""Where clients need keys, engines ask gateways for one: nobody passes these by, and no request is lost."""

import copy
import json
from typing import Any

import pytest

from mamba_api import names
from mamba_gateway.settings import GatewaySettings
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.manifest import Manifest, ref
from mamba_operator.render.access import VOLUME, mounts_key
from mamba_settings.engine_settings import EngineSettings
from operator_objects import NOW, applied, edited, fitting_owner, planned, running, snapshot

OPEN = fitting_owner()
GUARDED = fitting_owner(gateway={"auth": {"secretRef": {"name": "keys"}}})
SECRET = "nano-engine-key-11111111"


def made(plan: ReconcilePlan) -> dict[tuple[str, str], Manifest]:
    return {(one.manifest["kind"], one.manifest["metadata"]["name"]): one.manifest for one in plan.applies}


def template(children: dict[tuple[str, str], Manifest], name: str) -> Manifest:
    found: Manifest = children["Deployment", name]["spec"]["template"]
    return found


def after(of: Manifest, children: list[Manifest], pods: tuple[Manifest, ...] = ()) -> list[Manifest]:
    """Return the children when a pass wrote them and their controllers are done."""
    written = [one.manifest for one in planned(of, children, pods=pods).applies]
    by_ref = {ref(one): one for one in children} | {
        ref(one): {
            **one,
            "metadata": {"uid": f"uid-{one['metadata']['name']}", "generation": 1, **one["metadata"]},
        }
        for one in copy.deepcopy(written)
    }
    return running(list(by_ref.values()))


def pod(component: str, *, key: bool, phase: str = "Running", **meta: Any) -> Manifest:
    name = f"nano-{component}-{'new' if key else 'old'}"
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": names.labels("nano", component), **meta},  # type: ignore[arg-type]
        "spec": {"volumes": [{"name": VOLUME}] if key else []},
        "status": {"phase": phase},
    }


def reasons(of: Manifest, children: list[Manifest], pods: tuple[Manifest, ...]) -> dict[str, str]:
    status = summarize(snapshot(of, children, pods=pods), planned(of, children, pods=pods), (), now=NOW)
    assert status is not None
    return {one.type: one.reason for one in status.conditions}


def test_with_keys_for_clients_engines_ask_for_one_that_gateways_show() -> None:
    children = made(planned(GUARDED))
    settings = EngineSettings(**json.loads(children["ConfigMap", "nano-engine"]["data"]["engine.json"]))
    container = template(children, "nano")["spec"]["containers"][0]
    shown = container["args"][container["args"].index("--backend-key-file") + 1]
    assert settings.api_key_file == shown
    assert "backend_key_file" in GatewaySettings.model_fields
    for name in ("nano", "nano-engine"):
        pod = template(children, name)["spec"]
        [volume] = [one for one in pod["volumes"] if one["name"] == VOLUME]
        [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == VOLUME]
        assert volume["secret"]["secretName"] == SECRET
        assert shown == f"{mount['mountPath']}/{names.ENGINE_KEY_KEY}"
        assert mount["readOnly"]


def test_the_key_is_made_before_the_pods_and_is_neither_a_clients_nor_the_admin_token() -> None:
    plan = planned(GUARDED)
    [key] = [one for one in plan.applies if one.manifest["metadata"]["name"] == SECRET]
    [admin] = [one for one in plan.applies if one.manifest["metadata"]["name"].startswith("nano-admin")]
    assert key.create_only
    assert plan.applies.index(key) < 2
    value, name = key.manifest["stringData"][names.ENGINE_KEY_KEY].split()
    # By this name engines know who may speak for clients.
    assert (len(value), name) == (64, "gateway")
    assert value not in str(admin.manifest)


def test_without_keys_for_clients_there_is_none() -> None:
    children = made(planned(OPEN))
    assert not mounts_key(template(children, "nano"))
    assert not mounts_key(template(children, "nano-engine"))
    assert not [name for _, name in children if name == SECRET]


def test_gateways_show_the_key_before_the_first_engine_asks_for_it() -> None:
    before = running(applied(OPEN))
    first = made(planned(GUARDED, before))
    assert mounts_key(template(first, "nano"))
    assert ("Secret", SECRET) in first
    assert ("Deployment", "nano-engine") not in first

    half = after(GUARDED, before)
    old, new = pod("gateway", key=False), pod("gateway", key=True)
    ending = pod("gateway", key=False, deletionTimestamp="2026-01-02T11:59:00Z")
    for left in (old, ending):
        assert ("Deployment", "nano-engine") not in made(planned(GUARDED, half, pods=(left, new)))
        found = reasons(GUARDED, half, (left, new))
        assert found["Ready"] == "Serving"
        assert found["UpToDate"] != "UpToDate"
    gone = pod("gateway", key=False, phase="Succeeded")
    last = made(planned(GUARDED, half, pods=(gone, new)))
    assert mounts_key(template(last, "nano-engine"))


def test_a_gateway_that_is_not_ready_for_a_moment_takes_the_key_from_no_engine() -> None:
    serving = after(GUARDED, running(applied(GUARDED)))
    shaken = edited(serving, "Deployment", "nano", lambda one: one["status"].update(readyReplicas=0))
    assert planned(GUARDED, shaken, pods=(pod("gateway", key=False),)).applies == ()


def test_gateways_show_the_key_until_the_last_engine_does_not_ask_any_more() -> None:
    serving = after(GUARDED, running(applied(GUARDED)))
    first = made(planned(OPEN, serving, pods=(pod("engine", key=True),)))
    assert not mounts_key(template(first, "nano-engine"))
    assert mounts_key(template(first, "nano")), "only clients are not asked any more"
    half = after(OPEN, serving, (pod("engine", key=True),))
    assert ("Deployment", "nano") not in made(planned(OPEN, half, pods=(pod("engine", key=True),)))
    last = made(planned(OPEN, half, pods=(pod("engine", key=False),)))
    assert not mounts_key(template(last, "nano"))


def test_a_key_that_went_is_made_again_for_the_pods_that_wait_for_it() -> None:
    serving = after(GUARDED, running(applied(GUARDED)))
    waiting = pod("gateway", key=True, phase="Pending")
    waiting["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
    plan = planned(GUARDED, serving, pods=(waiting,))
    assert [name for _, name in made(plan)] == [SECRET]
    assert plan.requeue_after == 30.0


@pytest.mark.parametrize("spec", [None, {}, {"volumes": None}, {"volumes": "x"}, {"volumes": [None]}])
def test_a_pod_of_any_shape_is_looked_at(spec: Any) -> None:
    assert not mounts_key({"spec": spec})
