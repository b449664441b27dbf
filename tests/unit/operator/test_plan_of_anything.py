"""Whatever stands in an object or around it, there is a plan, and the plan is one that can be sent."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mamba_api import names
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import SpecInvalid
from mamba_operator.objects.manifest import Manifest, metadata
from mamba_operator.plan import make_plan
from operator_objects import NOW, applied, owner, planned, snapshot

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "engine", "delete", "merge"])
)
KEYS = st.sampled_from(
    ["metadata", "labels", "annotations", "spec", "containers", "initContainers", "name", "image", "env",
     "value", "valueFrom", "ports", "containerPort", "volumes", "emptyDir", "volumeMounts", "mountPath",
     "$patch",
     "$retainKeys", "serviceAccountName", "securityContext", "tolerations", "resources", "limits", "cpu"]
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)
TEMPLATES = st.dictionaries(KEYS, JSON, max_size=4)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(KEYS, JSON, max_size=3),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": st.lists(st.dictionaries(KEYS, JSON, max_size=4), max_size=2),
                          "volumes": JSON, "serviceAccountName": JSON, "securityContext": JSON},
        ),
    },
)  # fmt: skip


def check(of: Manifest, plan: ReconcilePlan) -> None:
    """Check the promises of every plan."""
    assert plan.verdict is not None
    if isinstance(plan.verdict, SpecInvalid):
        assert plan.verdict.message
        assert (plan.applies, plan.deletes) == ((), ())
    for change in plan.applies:
        assert json.loads(json.dumps(change.manifest, allow_nan=False)) == change.manifest
        if change.manifest["kind"] == "Deployment":
            wanted = change.manifest["spec"]["selector"]["matchLabels"].items()
            assert wanted <= metadata(change.manifest["spec"]["template"])["labels"].items()
    status = summarize(snapshot(of), plan, (), now=NOW)
    assert status is not None
    assert [one.type for one in status.conditions][-1] == "Ready"


@quick
@given(TEMPLATES | PODS)
def test_any_pod_template_is_merged_or_refused_with_its_path(template: dict[str, Any]) -> None:
    for spec, path in (({"podTemplate": template}, "podTemplate"),
                       ({"gateway": {"podTemplate": template}}, "gateway.podTemplate")):  # fmt: skip
        of = owner(**spec)
        plan = planned(of)
        check(of, plan)
        if isinstance(plan.verdict, SpecInvalid):
            assert plan.verdict.message.startswith(f"spec.{path}")


PARTS = st.sampled_from(
    ["model", "engine", "memory", "resources", "scaling", "rollout", "gateway", "mode", "replicas",
     "scheduling",
     "stateCache", "telemetry", "workload", "disaggregation", "bogus"]
)  # fmt: skip
FIELDS = st.sampled_from(["uri", "image", "gpus", "env", "limits", "nodeSelector"])
FRESH = planned(owner()).applies


@quick
@given(st.dictionaries(PARTS, JSON | st.dictionaries(FIELDS, JSON), max_size=4))
def test_any_spec_gets_a_verdict_and_a_status(spec: dict[str, Any]) -> None:
    of = {**owner(), "spec": {"model": {"uri": "builtin://tiny-recall"}, **spec}}

    check(of, planned(of))


@quick
@given(
    st.dictionaries(st.sampled_from(["conditions", "replicas", "plan", "scaling", "epoch", "url"]), JSON),
    JSON,
)
def test_any_status_leaves_the_plan_as_it_is(status: dict[str, Any], more: Any) -> None:
    for recorded in (status, more):
        of = {**owner(), "status": recorded}

        plan = planned(of)

        check(of, plan)
        assert plan.applies == FRESH


MARKS = st.sampled_from(
    [
        "",
        "x",
        "2026-01-02T11:59:00Z",
        "9999-12-31T23:59:59Z",
        "0001-01-01",
        "2026-W01-1",
        "24:00",
        "1e9",
        "\u0661",
    ]
) | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)


@quick
@given(MARKS, MARKS, st.sampled_from(["0s", "1ms", "300s", "9" * 30 + "h"]))
def test_any_mark_leaves_a_plan(wake: str, restart: str, delay: str) -> None:
    of = owner(
        metadata={"annotations": {names.ANNOTATION_RESTART: restart}},
        scaling={"minReplicas": 0, "scaleDownDelay": delay},
    )

    asked = next(one for one in applied(of) if one["metadata"]["name"] == "nano-wake")
    asked["data"] = {names.WAKE_KEY: wake}

    plan = make_plan(snapshot(of, [asked]), now=NOW, new_token=lambda: "token")

    check(of, plan)
    assert plan.replicas in (0, 1)
    assert plan.requeue_after is None


@quick
@given(st.data())
def test_any_damage_to_a_child_is_mended_there_and_nowhere_else(data: st.DataObject) -> None:
    of = owner()
    children = applied(of)
    number = data.draw(st.integers(0, len(children) - 1))
    field = data.draw(st.sampled_from(["spec", "rules", "subjects", "roleRef", "data", "metadata"]))
    damage = data.draw(JSON)
    child = children[number]
    if field == "metadata":
        child["metadata"]["annotations"] = damage if isinstance(damage, dict) else {}
    else:
        child[field] = damage

    plan = planned(of, children)

    check(of, plan)
    touched = [change.manifest["metadata"]["name"] for change in plan.applies]
    assert set(touched) <= {child["metadata"]["name"]}
