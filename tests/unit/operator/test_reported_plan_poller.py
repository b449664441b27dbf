"""Where the operator cannot plan, an engine tells the plan that it made: it is shown, and replaces no pod."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import PlanStatus
from mamba_operator.conditions.status import summarize
from mamba_operator.memory.poller import REFETCH_SECONDS, ReportedPlanPoller
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.observation.snapshot import ReportedPlan
from operator_objects import (
    NOW,
    TOLD,
    UID,
    applied,
    fitting_owner,
    owner,
    planned,
    running,
    snapshot,
    told_by_engine,
)

KEY = Key("models", "nano")
HUB = {"model": {"uri": "hf://org/model"}}


def with_status(of: Manifest, children: list[Manifest], told: ReportedPlan | None = None) -> Manifest:
    """Return the object after a pass."""
    seen = snapshot(of, children, reported=told)
    status = summarize(seen, planned(of, children, reported=told), (), now=NOW)
    assert status is not None
    return {**of, "status": status.manifest()}


def planned_condition(of: Manifest) -> tuple[str, str, str]:
    [found] = [one for one in of["status"]["conditions"] if one["type"] == "Planned"]
    return found["status"], found["reason"], found["message"]


class World:
    """One served deployment; what its engines say is set by the test."""

    def __init__(self, **spec: Any) -> None:
        self.owner = owner(**{**HUB, **spec})
        self.children = running(applied(self.owner), engines=1)
        self.told = told_by_engine(self.children)
        self.owner = with_status(self.owner, self.children)
        self.pods = [self.pod("a")]
        self.reply: str | None = json.dumps(TOLD)
        self.requests: list[tuple[str, str]] = []
        self.woken: list[Key] = []
        self.now = 0.0
        self._indices = Indices()
        self.watch = ReportedPlanPoller(
            self._indices, lambda uid: f"token of {uid}", self._get, self.woken.append, lambda: self.now
        )

    def pod(self, name: str, revision: str | None = None, ready: bool = True) -> Manifest:
        labels = {**names.labels("nano", "engine"), names.LABEL_REVISION: revision or self.told.revision}
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        return {
            "metadata": {"name": name, "namespace": "models", "labels": labels},
            "status": {"phase": "Running", "podIP": name, "conditions": [condition]},
        }

    async def poll(self) -> ReportedPlan | None:
        deployments = [one for one in self.children if one["kind"] == "Deployment"]
        self._indices.take(
            {
                index_id(MAMBA_DEPLOYMENT): {KEY: [self.owner]},
                index_id(DEPLOYMENT): {KEY: deployments},
                index_id(POD): {KEY: self.pods},
            }  # type: ignore[arg-type]
        )
        await self.watch.poll()
        return self.watch.reported(KEY)

    async def _get(self, address: str, token: str) -> str | None:
        self.requests.append((address, token))
        return self.reply


async def test_an_engine_that_answers_is_asked_with_its_token_and_wakes_its_deployment_once() -> None:
    world = World()

    assert await world.poll() == world.told
    assert (world.requests, world.woken) == ([("a", f"token of {UID}")], [KEY])

    await world.poll()
    assert len(world.requests) == 1

    world.now = REFETCH_SECONDS
    await world.poll()
    assert (len(world.requests), len(world.woken)) == (2, 1)


async def test_a_changed_object_is_asked_about_at_once_and_another_plan_wakes() -> None:
    world = World()
    await world.poll()
    world.owner["metadata"]["generation"] += 1
    world.reply = json.dumps({**TOLD, "strategy": "NoBuffer"})

    told = await world.poll()

    assert told is not None
    assert told.plan.strategy == "NoBuffer"
    assert len(world.woken) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.pods.clear(),
        lambda world: world.pods.__setitem__(0, world.pod("a", ready=False)),
        lambda world: world.pods.__setitem__(0, world.pod("a", revision="older")),
        lambda world: world.owner.pop("status"),
        lambda world: world.owner["status"]["conditions"][0].update(status="True", reason="PlanComputed"),
    ],
    ids=["no pod", "not ready", "another revision", "not looked at yet", "a plan of the operator"],
)
async def test_nobody_is_asked_where_no_engine_has_the_plan_that_is_missing(
    change: Callable[[World], Any],
) -> None:
    world = World()
    change(world)

    assert await world.poll() is None
    assert (world.requests, world.woken) == ([], [])


@pytest.mark.parametrize("said", [None, "", "{", "[]", json.dumps({**TOLD, "strategy": "Unheard"})])
async def test_what_is_no_plan_is_no_news_and_takes_nothing_back(said: str | None) -> None:
    world = World()
    first = await world.poll()
    world.reply, world.now = said, REFETCH_SECONDS

    assert await world.poll() == first
    assert len(world.woken) == 1


async def test_what_was_told_goes_with_the_object() -> None:
    world = World()
    await world.poll()
    world.owner.pop("status")

    assert await world.poll() is None


def test_a_plan_that_an_engine_told_is_shown_and_changes_no_child() -> None:
    world = World()
    assert planned_condition(world.owner)[:2] == ("Unknown", "ModelUnknown")
    assert world.owner["status"]["strategy"] == "Auto"

    told = with_status(world.owner, world.children, world.told)

    status, reason, message = planned_condition(told)
    assert (status, reason) == ("True", "PlanReported")
    assert "ExtraBuffer with float32 states" in message
    assert told["status"]["strategy"] == "ExtraBuffer"
    assert PlanStatus.model_validate(told["status"]["plan"], by_alias=True, by_name=False) == world.told.plan
    without = planned(world.owner, world.children)
    shown = planned(world.owner, world.children, reported=world.told)
    assert (shown.applies, shown.deletes) == (without.applies, without.deletes)


def test_it_stays_shown_for_a_new_operator_and_goes_with_another_generation() -> None:
    world = World()
    told = with_status(world.owner, world.children, world.told)

    assert with_status(told, world.children)["status"] == told["status"]

    changed = {**told, "metadata": {**told["metadata"], "generation": 4}}
    assert planned_condition(with_status(changed, world.children))[:2] == ("Unknown", "ModelUnknown")


def test_what_an_engine_of_an_older_revision_told_is_not_the_plan_of_this_one() -> None:
    world = World()

    told = with_status(world.owner, world.children, replace(world.told, revision="older"))

    assert planned_condition(told)[:2] == ("Unknown", "ModelUnknown")


def test_a_plan_of_the_operator_comes_before_what_engines_told() -> None:
    of = fitting_owner()
    children = applied(of)

    told = with_status(of, children, told_by_engine(children))

    assert planned_condition(told)[1] == planned_condition(with_status(of, children))[1] != "PlanReported"
