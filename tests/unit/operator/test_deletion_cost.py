"""When there shall be fewer engines, those go whose cache and work are worth least."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_cluster import FakeCluster
from mamba_api import names
from mamba_operator.autoscale.reports import DeletionCost
from mamba_operator.children.engine_admin import EngineAccess
from mamba_operator.deletion_cost import least_valuable
from mamba_operator.objects.errors import Forbidden, Unreachable
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from operator_objects import NOW, TOKEN, fitting_owner

KEY = Key("models", "nano")
HELD = {
    "a": "mambaserve_requests_running 9\nmambaserve_checkpoints 10\n",
    "b": "mambaserve_requests_running 1\nmambaserve_checkpoints 400\n",
    "c": "mambaserve_requests_running 1\nmambaserve_checkpoints 20\n",
}


def pod(name: str, *, ready: bool = True, **meta: Any) -> Manifest:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "models", "labels": names.labels("nano", "engine"), **meta},
        "status": {
            "phase": "Running", "podIP": name,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


class Fleet:
    """Engines that run, and an operator that may ask them."""

    def __init__(self, *pods: Manifest, replicas: int = 3) -> None:
        self.cluster = FakeCluster(fitting_owner(replicas=replicas))
        self.asked: list[str] = []
        self.held = dict(HELD)
        self._pods = pods
        self._pass = Reconciler(
            self.cluster, OperatorMetrics(), PassSettings("test"), engines=EngineAccess(read=self._read),
            runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN),
        )  # fmt: skip

    async def _read(self, address: str) -> str | None:
        self.asked.append(address)
        return self.held.get(address)

    async def settled(self) -> "Fleet":
        await self._pass(KEY)
        for one in self._pods:
            self.cluster.put(one)
        await self._pass(KEY)
        self.cluster.calls.clear()
        return self

    async def scaled_to(self, replicas: int) -> None:
        found = self.cluster.find("MambaDeployment", "nano")
        assert found is not None
        self.cluster.put({**found, "spec": {**found["spec"], "replicas": replicas}})
        await self._pass(KEY)

    @property
    def marked(self) -> set[str]:
        pods = (one for (kind, *_), one in self.cluster.objects.items() if kind == "Pod")
        return {
            one["metadata"]["name"]
            for one in pods
            if (one["metadata"].get("annotations") or {}).get(names.ANNOTATION_DELETION_COST) == "-1"
        }

    @property
    def replicas(self) -> int:
        engine = self.cluster.find("Deployment", "nano-engine")
        assert engine is not None
        return int(engine["spec"]["replicas"])


@pytest.mark.parametrize(("replicas", "gone"), [(2, {"c"}), (1, {"a", "c"})])
async def test_the_engines_that_hold_least_are_marked_before_the_number_falls(
    replicas: int, gone: set[str]
) -> None:
    fleet = await Fleet(*map(pod, HELD)).settled()
    await fleet.scaled_to(replicas)
    assert (fleet.marked, fleet.replicas) == (gone, replicas)
    calls = fleet.cluster.calls
    assert calls.index("apply Deployment/nano-engine") > max(
        calls.index(f"merge Pod/{name}") for name in gone
    )


async def test_nothing_is_asked_or_written_while_the_number_stays_or_grows_or_nothing_is_left() -> None:
    for replicas in (3, 4, 0):
        fleet = await Fleet(*map(pod, HELD)).settled()
        await fleet.scaled_to(replicas)
        assert (fleet.asked, fleet.marked) == ([], set())


async def test_engines_that_are_not_ready_or_on_their_way_out_go_by_themselves() -> None:
    fleet = await Fleet(
        pod("a"), pod("b", ready=False), pod("c", deletionTimestamp="2026-01-02T12:00:00Z")
    ).settled()
    await fleet.scaled_to(1)
    assert (fleet.asked, fleet.marked, fleet.replicas) == ([], set(), 1)


async def test_an_engine_that_says_nothing_goes_first() -> None:
    fleet = await Fleet(*map(pod, HELD)).settled()
    del fleet.held["b"]
    fleet.held["c"] = "nonsense"
    await fleet.scaled_to(1)
    assert fleet.marked == {"b", "c"}


async def test_a_mark_of_an_earlier_time_is_taken_back() -> None:
    stale = {names.ANNOTATION_DELETION_COST: "-1", "kept": "yes"}
    fleet = await Fleet(pod("a", annotations=stale), pod("b"), pod("c")).settled()
    await fleet.scaled_to(2)
    assert fleet.marked == {"c"}
    found = fleet.cluster.find("Pod", "a")
    assert found is not None
    assert found["metadata"]["annotations"] == {"kept": "yes"}


@pytest.mark.parametrize("error", [Forbidden("no", status=403), Unreachable("away", status=None)])
async def test_where_pods_cannot_be_marked_the_number_falls_all_the_same(error: Exception) -> None:
    fleet = await Fleet(*map(pod, HELD)).settled()
    fleet.cluster.fault = lambda verb, kind, name: error if (verb, kind) == ("merge", "Pod") else None
    await fleet.scaled_to(1)
    assert (fleet.marked, fleet.replicas) == (set(), 1)


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=4),
        st.none() | st.builds(DeletionCost, *[st.integers(0, 9).map(float)] * 2),
        min_size=1, max_size=8,
    ),
    st.integers(1, 8),
)  # fmt: skip
def test_nobody_who_goes_holds_more_of_both_than_one_who_stays(
    held: dict[str, DeletionCost | None], fewer: int
) -> None:
    gone = least_valuable(held, fewer)
    assert len(gone) == min(fewer, len(held))
    for left in held.keys() - gone:
        stays = held[left]
        for name in gone:
            goes = held[name]
            assert stays is not None or goes is None
            if stays is not None and goes is not None:
                more = goes.checkpoints > stays.checkpoints and goes.requests >= stays.requests
                assert not more
