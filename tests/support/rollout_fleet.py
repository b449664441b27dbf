"""A fleet whose roll-outs the operator's own decisions see to, in numbers and virtual time.

The hand of the cluster is played as Kubernetes plays it: a Deployment controller with surge and bounds, one
that makes and removes pods within a quota, a scheduler that knows GPUs, kubelets that load models, drain
engines and report crashes.
"""

import copy
import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mamba_api import names
from mamba_operator.conditions.status import summarize
from mamba_operator.objects.manifest import Key, Manifest, Ref, label_of, ref
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.plan import make_plan
from mamba_operator.rollout.attempts import Attempts
from mamba_operator.rollout.rollback import EngineHistory
from operator_objects import NOW, TOKEN, UID, fitting_owner

STEP = 10.0
LOAD, DRAIN = 20.0, 10.0
DEADLINE, IN_PLACE = 600.0, 60.0
OLD, NEW = "registry.test/engine:old", "registry.test/engine:new"
QUOTA = "exceeded quota: gpu, requested: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu={}"
NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@dataclass
class Pod:
    """An engine pod as its kubelet and the scheduler see it."""

    name: str
    label: str
    born: float
    node: int | None = None
    placed: float = 0.0
    ready: bool = False
    crashes: bool = False
    leaves: float | None = None
    """When a pod that drains will be gone."""


@dataclass
class ReplicaSet:
    """Pods of one template, and how many of them the Deployment controller wants."""

    template: Manifest
    size: int = 0
    pods: list[Pod] = field(default_factory=list)

    @property
    def living(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.leaves is None]

    @property
    def available(self) -> int:
        return sum(pod.ready for pod in self.living)


class RolloutFleet:
    """A deployment that serves with the image `OLD`, in a cluster with one GPU for each entry of `nodes`.

    Args:
        replicas: engines wanted at first.
        nodes: number of GPUs of each node.
        quota: most pods that there may be, those that drain included; None: any number.
        broken: nodes on which no engine starts any more.
        slow: nodes on which an engine that starts neither answers nor fails any more: a volume does not come.
        bad: whether the image `NEW` starts nowhere.
        failing_requests: whether the image `NEW` starts and fails requests.
        rollout: `spec.rollout`.
    """

    def __init__(
        self, replicas: int, nodes: list[int], *, quota: int | None = None,
        broken: frozenset[int] = frozenset(), slow: frozenset[int] = frozenset(),
        bad: bool = False, failing_requests: bool = False, **rollout: Any,
    ) -> None:  # fmt: skip
        self.replicas, self.nodes, self.quota = replicas, nodes, quota
        self.broken: frozenset[int] = frozenset()
        self.slow: frozenset[int] = frozenset()
        self._slow_later = slow
        self._broken_later, self.bad, self.failing_requests = broken, bad, failing_requests
        self._rollout = {
            "inPlaceAfter": f"{IN_PLACE:.0f}s", "progressDeadline": f"{DEADLINE:.0f}s", "minReadyTime": "0s",
            **rollout,
        }  # fmt: skip
        self.at, self._generation, self._image = 0.0, 1, OLD
        self._children: dict[Ref, Manifest] = {}
        self._sets: dict[str, ReplicaSet] = {}
        self._numbers = itertools.count()
        self._history = EngineHistory()
        self._status: Manifest = {}
        self._progress, self._last_counts = 0.0, (0, 0, 0)
        self._last_replicas = 0
        self._refused_at: float | None = None
        self._retried: tuple[int, str | None] | None = None
        self.taken_back_while: list[tuple[int, int, str]] = []
        """(serving, started, reason) of the new revision whenever it was taken back."""
        self._was_back = False
        for _ in range(400):
            self.step()
            if self.at > STEP and self.settled:
                break

    # What a test does and asks.

    def change(self, *, replicas: int | None = None) -> None:
        """Ask for the image `NEW`, and for another number of engines."""
        self._image, self._generation = NEW, self._generation + 1
        self.replicas = self.replicas if replicas is None else replicas
        self.broken, self.slow = self._broken_later, self._slow_later

    @property
    def max_unavailable(self) -> int:
        return int(self._rollout.get("maxUnavailable", 0))

    def lose_node(self, node: int) -> int:
        """Remove a node with its engines and return how many engines had room on it."""
        lost = self.nodes[node]
        self.nodes = [0 if number == node else gpus for number, gpus in enumerate(self.nodes)]
        for one in self._sets.values():
            one.pods = [pod for pod in one.pods if pod.node != node]
        return lost

    @property
    def serving(self) -> int:
        return sum(one.available for one in self._sets.values())

    @property
    def old(self) -> list[Pod]:
        """Pods of the image `OLD`."""
        return [pod for one in self._sets.values() if _image_of(one.template) == OLD for pod in one.pods]

    @property
    def new(self) -> list[Pod]:
        """Pods of the image `NEW` that are not on their way out."""
        return [pod for one in self._sets.values() if _image_of(one.template) == NEW for pod in one.living]

    @property
    def conditions(self) -> dict[str, tuple[str, str, str]]:
        """(status, reason, message) by type."""
        entries = self._status.get("conditions") or ()
        return {one["type"]: (one["status"], one["reason"], one["message"]) for one in entries}

    @property
    def settled(self) -> bool:
        """Tell whether the roll-out has ended.

        Either everything for which there is room is as specified, or a condition says that it will not be and
        the reverted revision is gone.
        """
        conditions, pods = self.conditions, [pod for one in self._sets.values() for pod in one.pods]
        if any(pod.leaves is not None for pod in pods) or (self._was_back and self.new):
            return False
        if self._status["observedGeneration"] != self._generation:
            return False
        short = conditions["UpToDate"][1] == "ScalingUp" and not (self.new and self.old)
        rest = any(pod.ready for pod in pods) and all(pod.ready or pod.node is None for pod in pods)
        return conditions["UpToDate"][0] == "True" or conditions["Stalled"][0] == "True" or (short and rest)

    def step(self) -> None:
        """Advance by ten seconds."""
        self.at += STEP
        self._kubelets()
        self._scheduler()
        self._controller()
        self._operator()

    # The operator.

    @property
    def _now(self) -> datetime:
        return NOW + timedelta(seconds=self.at)

    def _owner(self) -> Manifest:
        owner = fitting_owner(replicas=self.replicas, engine={"image": self._image}, rollout=self._rollout)
        owner["metadata"] |= {"generation": self._generation, "uid": UID}
        return {**owner, "status": self._status} if self._status else owner

    def _operator(self) -> None:
        owner, pods = self._owner(), tuple(self._pods())
        snapshot = Snapshot(
            Key("models", "nano"), owner, dict(self._children), pods=pods,
            engine_times=self._history.observe(pods, self._now), attempts=self._attempts(),
        )  # fmt: skip
        plan = make_plan(snapshot, now=self._now, new_token=lambda: TOKEN)
        back = plan.failed is not None
        if back and not self._was_back:
            started = [pod for pod in self.new if pod.node is not None]
            assert plan.failed is not None
            serving = sum(pod.ready for pod in started)
            self.taken_back_while.append((serving, len(started), plan.failed.reason))
        self._was_back = back
        status = summarize(snapshot, plan, (), now=self._now)
        assert status is not None
        self._status = status.manifest()
        for apply in plan.applies:
            if apply.manifest["kind"] != "Secret":
                self._write(copy.deepcopy(apply.manifest))

    def _write(self, child: Manifest) -> None:
        stored = self._children.get(ref(child))
        meta = child["metadata"]
        before = stored["metadata"] if stored else {"generation": 0, "uid": f"uid-{len(self._children)}"}
        changed = stored is None or stored.get("spec") != child.get("spec")
        meta |= {
            "uid": before["uid"], "resourceVersion": str(next(self._numbers)),
            "generation": before["generation"] + changed,
        }  # fmt: skip
        if stored and "status" in stored:
            child["status"] = stored["status"]
        self._children[ref(child)] = child

    def _attempts(self) -> dict[str, Attempts]:
        if not self.failing_requests:
            return {}
        counted = {}
        for label, one in self._sets.items():
            if one.available and _image_of(one.template) == NEW:
                counted[label] = Attempts(answered=30.0, failed=30.0, failing_samples=5)
            elif one.available:
                counted[label] = Attempts(answered=200.0)
        return counted

    def _pods(self) -> list[Manifest]:
        return [self._pod(pod, one) for one in self._sets.values() for pod in one.pods]

    def _pod(self, pod: Pod, of: ReplicaSet) -> Manifest:
        meta: Manifest = {
            "name": pod.name, "namespace": "models", "uid": pod.name,
            "creationTimestamp": self._time(pod.born), "labels": dict(of.template["metadata"]["labels"]),
        }  # fmt: skip
        if pod.leaves is not None:
            meta["deletionTimestamp"] = self._time(pod.leaves)
        spec = dict(of.template["spec"])  # no one changes what is below; a whole copy is slow
        status: Manifest = {"phase": "Pending"}
        if pod.node is None:
            status["conditions"] = [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM,
                "lastTransitionTime": self._time(pod.born),
            }]  # fmt: skip
        else:
            spec["nodeName"] = f"node-{pod.node}"
            ready = {"type": "Ready", "status": "True" if pod.ready else "False"}
            status = {"phase": "Running", "conditions": [ready]}
        if pod.crashes:
            status["containerStatuses"] = [{
                "name": "engine", "ready": False, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 1, "message": "CUDA error"}},
            }]  # fmt: skip
        return {"kind": "Pod", "metadata": meta, "spec": spec, "status": status}

    def _time(self, at: float) -> str:
        return (NOW + timedelta(seconds=at)).isoformat()

    # The cluster.

    def _kubelets(self) -> None:
        for one in self._sets.values():
            one.pods = [pod for pod in one.pods if pod.leaves is None or pod.leaves > self.at]
            bad = self.bad and _image_of(one.template) == NEW
            for pod in one.pods:
                if pod.node is None or pod.ready or pod.leaves is not None or self.at - pod.placed < LOAD:
                    continue
                pod.crashes = bad or pod.node in self.broken
                pod.ready = not pod.crashes and pod.node not in self.slow

    def _scheduler(self) -> None:
        every = [pod for one in self._sets.values() for pod in one.pods]
        free = list(self.nodes)
        for pod in every:
            if pod.node is not None:
                free[pod.node] -= 1
        for pod in sorted((pod for pod in every if pod.node is None), key=lambda pod: pod.born):
            node = max(range(len(free)), key=lambda number: free[number])
            if pod.leaves is None and free[node] > 0:
                pod.node, pod.placed = node, self.at
                free[node] -= 1

    def _controller(self) -> None:
        engine = self._children.get(Ref("Deployment", "nano-engine"))
        if engine is None:
            return
        spec = engine["spec"]
        label = str(label_of(engine))
        if label not in self._sets:
            self._progress = self.at
        mine = self._sets.setdefault(label, ReplicaSet(spec["template"]))
        how = spec["strategy"]["rollingUpdate"]
        if not spec["paused"]:
            self._scale(mine, spec["replicas"], how["maxSurge"], how["maxUnavailable"])
        self._last_replicas = spec["replicas"]
        for number in range(2):
            for one in self._sets.values():
                # What frees a quota comes before what uses it.
                if (len(one.living) > one.size) == (number == 0):
                    self._match(one, engine)
        self._report(engine, mine)
        gateway = self._children[Ref("Deployment", "nano")]
        count = gateway["spec"]["replicas"]
        gateway["status"] = {
            "observedGeneration": gateway["metadata"]["generation"], "replicas": count,
            "updatedReplicas": count, "readyReplicas": count,
        }  # fmt: skip

    def _scale(self, mine: ReplicaSet, replicas: int, surge: int, unavailable: int) -> None:
        """Perform one sync of Kubernetes' controller for rolling updates."""
        sets = list(self._sets.values())
        others = [one for one in sets if one is not mine]
        if self._last_replicas and replicas != self._last_replicas:
            active = [one for one in sets if one.size]
            if len(active) <= 1:
                (active[0] if active else mine).size = replicas
            else:
                # The largest takes the difference.
                largest = max(active, key=lambda one: one.size)
                largest.size = max(largest.size + replicas + surge - sum(one.size for one in sets), 0)
        total = sum(one.size for one in sets)
        if mine.size > replicas:
            mine.size = replicas
        elif mine.size < replicas and total < replicas + surge:
            mine.size += min(replicas + surge - total, replicas - mine.size)
            return
        lowest = replicas - unavailable
        total = sum(one.size for one in sets)
        down = total - lowest - (mine.size - mine.available)
        if down <= 0:
            return
        for one in others:
            unhealthy = min(down, max(one.size - one.available, 0))
            one.size -= unhealthy
            down -= unhealthy
        more = sum(min(one.available, one.size) for one in sets) - lowest
        for one in others:
            gone = min(one.size, max(more, 0))
            one.size -= gone
            more -= gone

    def _match(self, one: ReplicaSet, engine: Manifest) -> None:
        """Make or remove pods of one template, those first that serve least."""
        while len(one.living) > one.size:
            pod = min(one.living, key=lambda pod: (pod.node is not None, pod.ready, -pod.born))
            if pod.node is None:
                one.pods.remove(pod)
            else:
                pod.leaves = self.at + (DRAIN if pod.ready else 0.0)
                pod.ready = False
        total = sum(len(each.pods) for each in self._sets.values())
        # Kubernetes waits longer and longer until it asks a quota again; at once only for what changed.
        retry = (one.size, engine["metadata"].get("annotations", {}).get(names.ANNOTATION_RETRY))
        while len(one.living) < one.size:
            if self._refused_at is not None and self._retried == retry and total and len(one.pods) < one.size:
                break
            self._retried = None
            if self.quota is not None and total >= self.quota:
                self._refused_at, self._retried = self._refused_at or self.at, retry
                break
            one.pods.append(Pod(f"pod-{next(self._numbers)}", "", self.at))
            self._refused_at = None
            total += 1

    def _report(self, engine: Manifest, mine: ReplicaSet) -> None:
        living = [pod for one in self._sets.values() for pod in one.living]
        counts = (len(mine.living), len(living) - len(mine.living), sum(pod.ready for pod in living))
        old = self._last_counts
        if counts[0] > old[0] or counts[1] < old[1] or counts[2] > old[2]:
            self._progress = self.at
        self._last_counts = counts
        replicas = engine["spec"]["replicas"]
        complete = counts == (replicas, 0, replicas)
        if complete:
            self._progress = self.at
        conditions = []
        if not complete and not engine["spec"]["paused"] and self.at - self._progress > DEADLINE:
            conditions.append({
                "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
                "message": "ReplicaSet has timed out progressing.",
            })  # fmt: skip
        if self._refused_at is not None and len(living) < sum(one.size for one in self._sets.values()):
            conditions.append({
                "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                "message": QUOTA.format(self.quota), "lastTransitionTime": self._time(self._refused_at),
            })  # fmt: skip
        engine["status"] = {
            "observedGeneration": engine["metadata"]["generation"], "replicas": len(living),
            "updatedReplicas": len(mine.living), "readyReplicas": counts[2], "conditions": conditions,
        }  # fmt: skip


def _image_of(template: Manifest) -> str:
    return str(template["spec"]["containers"][0]["image"])
