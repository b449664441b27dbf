"""Two pools with two engines each, as the watches of an operator hold them, and what the pods answer."""

from typing import Any

from prometheus_client import CollectorRegistry

from mamba_api import names
from mamba_api.choices import Role
from mamba_operator.autoscale.autoscaler import Autoscaler
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest
from operator_objects import fitting_owner

KEY = Key("models", "nano")
RANGES = {
    "prefill": {"scaling": {"minReplicas": 1, "maxReplicas": 6, "ttftTarget": "1s"}},
    "decode": {
        "scaling": {"minReplicas": 1, "maxReplicas": 8, "tpotTarget": "50ms", "scaleDownDelay": "60s"}
    },
}
DOOR = "mambaserve_gateway_in_flight 0\n"
QUIET = "mambaserve_requests_running 0\nmambaserve_transfer_credits 4\n"


def pod(role: Role, number: int) -> Manifest:
    name = f"{role}-{number}"
    return {
        "metadata": {
            "name": name, "namespace": "models",
            "labels": {**names.labels("nano", "engine"), names.LABEL_ROLE: role},
        },
        "status": {"phase": "Running", "podIP": name, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def door() -> Manifest:
    return {
        "metadata": {"name": "door", "namespace": "models", "labels": names.labels("nano", "gateway")},
        "status": {"phase": "Running", "podIP": "door", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class World:
    """Contents of the watches with two engines of each pool, and answers of the pods."""

    def __init__(self, **pools: Any) -> None:
        of = fitting_owner(disaggregation={**RANGES, **pools})
        of["status"] = {
            "pools": [{"name": pool, "scaling": {"desired": 2, "start": 1}} for pool in ("prefill", "decode")]
        }
        pods = [pod(role, number) for role in ("prefill", "decode") for number in range(2)]  # type: ignore[arg-type]
        self.reports: dict[str, str] = {**{each["metadata"]["name"]: QUIET for each in pods}, "door": DOOR}
        self.now = 0.0
        self.registry = CollectorRegistry()
        indices = Indices()
        indices.take({index_id(MAMBA_DEPLOYMENT): {KEY: [of]}, index_id(POD): {KEY: [*pods, door()]}})
        self.autoscaler = Autoscaler(
            indices, self._read, lambda _: None, ScalingMetrics(self.registry), period=10,
            now=lambda: self.now,
        )  # fmt: skip

    async def _read(self, address: str) -> str | None:
        return self.reports.get(address)

    async def decisions(self, polls: int = 1) -> dict[Role, ScalingDecision]:
        for _ in range(polls):
            await self.autoscaler.poll()
            self.now += 10
        return {role: latest.decision for role, latest in self.autoscaler.latest_decisions(KEY).items()}

    def set(self, role: Role, text: str) -> None:
        self.reports |= {f"{role}-{number}": text for number in range(2)}
