"""`ReportedPlanPoller`: polls an engine for its own memory plan where the operator cannot compute one.

Wired by `main`; a pass puts the reported plan into the status and changes no pod for it (`with_report`).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import ValidationError

from mamba_api import names
from mamba_api.choices import ROLES, Role
from mamba_api.v1alpha1 import PlanStatus
from mamba_api.v1alpha1.conditions import ConditionType, Reason
from mamba_operator.children.engine_admin import GetPlan
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, label_of, metadata, name_of, pod_revision
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import serves
from mamba_operator.observation.snapshot import ReportedPlan

log = structlog.get_logger(__name__)
PLAN_POLL_SECONDS = 10.0
"""Seconds between two polls of deployments without a reported plan."""
REFETCH_SECONDS = 60.0
"""Seconds for which a reported plan is not fetched again; a change of strategy changes it."""
MAX_CONNECTIONS = 32
"""Concurrent connections to engines of all deployments."""
SELF_PLANNED_REASONS = frozenset(
    {Reason.MODEL_UNKNOWN, Reason.DEVICE_MEMORY_UNKNOWN, Reason.PLAN_REPORTED, Reason.PLAN_DIFFERS}
)
"""Reasons of Planned with which engines may have planned for themselves."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Reported plan, and the request that fetched it."""

    plan: ReportedPlan
    generation: Any
    """Generation of the object at the time of the request."""
    requested_at: float
    """Time of the request on the monotonic clock, in seconds."""


class ReportedPlanPoller(PodPoller[Manifest, dict[Role, _Fetched]]):
    """The part of the operator that polls engines for their memory plans. One instance per active operator.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        token: returns the admin token of the deployment with a uid.
        get: fetches the plan of one engine.
        wake: called with each deployment whose reported plan changed.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self,
        indices: Indices,
        token: Callable[[str], str],
        get: GetPlan,
        wake: Callable[[Key], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(indices, wake, period=PLAN_POLL_SECONDS, failure_event="plan_poll_failed", now=now)
        self._token, self._get = token, get
        self._connections = asyncio.Semaphore(MAX_CONNECTIONS)

    def reported(self, key: Key) -> ReportedPlan | None:
        """Return the plan that a unified engine reported last; None = none has reported one."""
        return self.reported_by_role(key).get("unified")

    def reported_by_role(self, key: Key) -> dict[Role, ReportedPlan]:
        """Return the plan that an engine of each role reported last."""
        return {role: fetched.plan for role, fetched in self._reports.get(key, {}).items()}

    def _select(self, key: Key) -> Manifest | None:
        owners = self._indices.of(MAMBA_DEPLOYMENT, key)
        return owners[0] if owners and _may_plan_for_itself(owners[0]) else None

    async def _update(self, key: Key, selection: Manifest) -> bool:
        changes = [await self._update_role(key, role, selection) for role in ROLES]
        return any(changes)

    async def _update_role(self, key: Key, role: Role, selection: Manifest) -> bool:
        engine = _serving_engine(self._indices, key, role)
        if engine is None:
            return False
        pod, revision = engine
        fetched, now = self._reports.get(key, {}).get(role), self._now()
        generation = metadata(selection).get("generation")
        if (
            fetched is not None
            and (fetched.plan.revision, fetched.generation) == (revision, generation)
            and now - fetched.requested_at < REFETCH_SECONDS
        ):
            return False
        async with self._connections:
            text = await self._get(pod["status"]["podIP"], self._token(str(metadata(selection).get("uid"))))
        if text is None:
            return False
        try:
            plan = ReportedPlan(revision, PlanStatus.model_validate_json(text, by_alias=True, by_name=False))
        except ValidationError as error:
            log.warning("reported_plan_invalid", pod=name_of(pod), error=str(error))
            return False
        self._reports.setdefault(key, {})[role] = _Fetched(plan, generation, now)
        return fetched is None or plan != fetched.plan


def _may_plan_for_itself(owner: Manifest) -> bool:
    # The status is not parsed as a whole, because every poll asks this of every object.
    status = owner.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return any(
        isinstance(condition, dict)
        and condition.get("type") == ConditionType.PLANNED
        and condition.get("reason") in SELF_PLANNED_REASONS
        for condition in (conditions if isinstance(conditions, list) else ())
    )


def _serving_engine(indices: Indices, key: Key, role: Role) -> tuple[Manifest, str] | None:
    """Return a pod of the role's desired revision that serves, and that revision; None if no pod does."""
    name = names.Children(key.name, role).engine
    revision = next(
        (label_of(child) for child in indices.of(DEPLOYMENT, key) if name_of(child) == name), None
    )
    for pod in indices.of(POD, key):
        if revision and serves(pod) and pod_revision(pod) == revision and pod["status"].get("podIP"):
            return pod, revision
    return None
