"""A revision that is ready and fails requests is taken back, while engines of the old one serve beside it."""

from datetime import timedelta
from typing import Any

import pytest

from deployment_life import KEY, POD, Life, served
from mamba_api import names
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT
from mamba_operator.objects.kinds import POD as PODS
from mamba_operator.objects.manifest import Key, Manifest, label_of
from mamba_operator.rollout.attempts import MIN_FAILING_SAMPLES
from mamba_operator.rollout.rollback import ERROR_RATE_ROSE
from mamba_operator.rollout.watch import RolloutWatch
from metrics_of_pods import gateway_text

OTHER: dict[str, Any] = {"engine": {"image": "registry.test/engine:other"}}
BROKEN = Key("models", "broken")
READY = [{"type": "Ready", "status": "True"}]
Counts = dict[str, tuple[int, int]]


class Rolling:
    """A roll-out under way: one engine of each revision, a gateway, and a watch that reads it."""

    def __init__(self, life: Life, old: str, new: str) -> None:
        self.life, self.old, self.new = life, old, new
        self.pods = [
            self._pod("old", "engine", old),
            self._pod("new", "engine", new),
            self._pod("door", "gateway"),
        ]
        self.counted: Counts | None = {}
        self.woken: list[Any] = []
        self.by_id: dict[str, dict[Any, list[Manifest]]] = {
            index_id(MAMBA_DEPLOYMENT): {KEY: [{}]}, index_id(PODS): {KEY: self.pods},
        }  # fmt: skip
        indices = Indices()
        indices.take(self.by_id)
        self.watch = RolloutWatch(indices, self._read, self.woken.append, now=self._seconds)

    def _seconds(self) -> float:
        return self.life.now.timestamp()

    def _pod(self, name: str, component: Any, revision: str = "") -> Manifest:
        labels = {**names.labels("nano", component), names.LABEL_REVISION: revision}
        status = {"phase": "Running", "podIP": name, "conditions": READY}
        return {"metadata": {"name": name, "namespace": "models", "labels": labels}, "status": status}

    async def _read(self, address: str) -> str | None:
        assert address == "door", "engines are asked by others"
        return None if self.counted is None else gateway_text(in_flight=0, attempts=self.counted)

    async def polls(self, *counted: Counts | None) -> None:
        for one in counted:
            self.life.now += timedelta(seconds=5)
            self.counted = one
            await self.watch.poll()
        self.life.attempts = dict(self.watch.attempts(KEY))


async def rolling() -> Rolling:
    life = await served()
    old = label_of(engine(life))
    life.spec(4, **OTHER)
    await life.reconcile()
    new = label_of(engine(life))
    assert old is not None
    assert new is not None
    assert old != new
    meta = {"name": "new", "namespace": "models", "labels": {**POD, names.LABEL_REVISION: new}}
    status = {"phase": "Running", "conditions": READY}
    life.cluster.put({"kind": "Pod", "metadata": meta, "status": status})
    life.controllers(engines=2, updated=1, replicas=2)
    return Rolling(life, old, new)


def engine(life: Life) -> Manifest:
    found = life.cluster.find("Deployment", "nano-engine")
    assert found is not None
    return found


def failing(look: int) -> Counts:
    return {"old": (10 * look, 0), "new": (5 * look, 5 * look)}


async def test_a_revision_that_fails_requests_is_taken_back_while_the_old_one_serves() -> None:
    run = await rolling()
    life = run.life
    await run.polls(*(failing(look) for look in range(MIN_FAILING_SAMPLES)))
    await life.reconcile()
    assert label_of(engine(life)) == run.new, "too few looks"
    await run.polls(failing(MIN_FAILING_SAMPLES))
    assert KEY in run.woken
    _, events = await life.reconcile()
    assert label_of(engine(life)) == run.old
    assert "RolledBack" in events

    life.cluster.objects.pop(("Pod", "models", "new"))
    life.controllers(engines=1)
    life.attempts = {}
    conditions, _ = await life.reconcile(minutes=5)
    assert label_of(engine(life)) == run.old, "it is noted, whatever is counted later"
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["Degraded"] == ("True", "RolledBack")
    status = life.cluster.find("MambaDeployment", "nano")["status"]
    assert status["rollout"] == {
        "readyRevision": run.old,
        "failedRevision": run.new,
        "reason": ERROR_RATE_ROSE,
        "message": f"it failed 15 of 30 (50.0%) requests, while {run.old} failed 0 of 30 (0.0%) "
        "at the same time",
    }
    [told] = [one["message"] for one in status["conditions"] if one["type"] == "Degraded"]
    assert "did not become ready" not in told
    assert "correct the spec" in told


@pytest.mark.parametrize(
    "counted",
    [
        [{"old": (5 * look, 5 * look), "new": (5 * look, 5 * look)} for look in range(20)],
        [{"old": (10 * look, 0), "new": (10 * look, 0)} for look in range(20)],
        [{"new": (0, 10 * look)} for look in range(20)],
        [None] * 20,
        [{"old": (100, 0), "new": (0, 100)}] * 20,
    ],
    ids=["both alike", "none fails", "nothing beside it", "nobody tells", "before the first look"],
)
async def test_a_roll_out_goes_on_where_nothing_is_shown_against_it(counted: list[Counts | None]) -> None:
    run = await rolling()
    await run.polls(*counted)
    await run.life.reconcile()
    assert label_of(engine(run.life)) == run.new


async def test_a_paused_roll_out_stays_where_it_is() -> None:
    run = await rolling()
    run.life.spec(5, rollout={"pause": True}, **OTHER)
    await run.polls(*(failing(look) for look in range(10)))
    await run.life.reconcile()
    assert label_of(engine(run.life)) == run.new


async def test_nobody_is_asked_while_one_revision_runs_and_what_was_counted_is_forgotten() -> None:
    run = await rolling()
    await run.polls(*(failing(look) for look in range(MIN_FAILING_SAMPLES + 1)))
    assert run.watch.attempts(KEY)
    run.by_id[index_id(PODS)][KEY] = [run.pods[1], run.pods[2]]
    run.counted = None
    asked: list[str] = []
    run.watch._read = asked.append  # type: ignore[assignment]
    await run.watch.poll()
    assert asked == []
    assert run.watch.attempts(KEY) == {}


async def test_a_deployment_that_cannot_be_looked_at_keeps_no_other_from_being() -> None:
    run = await rolling()
    run.by_id[index_id(MAMBA_DEPLOYMENT)] = {BROKEN: [{}], KEY: [{}]}
    run.by_id[index_id(PODS)][BROKEN] = [{**one, "status": 7} for one in run.pods]
    await run.polls(*(failing(look) for look in range(MIN_FAILING_SAMPLES + 1)))
    assert run.watch.attempts(KEY)[run.new].failed


async def test_the_revisions_of_two_pools_are_no_roll_out_and_two_of_one_pool_are() -> None:
    run = await rolling()
    prefill, decode, *_ = run.pods
    other = run._pod("other", "engine", "another")
    for pod, role in ((prefill, "prefill"), (decode, "decode"), (other, "decode")):
        pod["metadata"]["labels"][names.LABEL_ROLE] = role
    await run.polls(failing(1), failing(2))
    assert run.life.attempts == {}

    run.pods.append(other)
    await run.polls(failing(3), failing(4))
    assert run.life.attempts.keys() >= {run.new}
