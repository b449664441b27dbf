"""`PlanWatch`: polls an engine for its own memory plan where the operator cannot make one.

Runs beside the reconcile passes: an engine that does not answer delays none of them. Writes nothing; a pass
puts the reported plan into the status and changes no pod for it (`reported_plan`).
"""

import asyncio
import time
from collections.abc import Callable

import structlog
from pydantic import ValidationError

from mamba_api import names
from mamba_api.v1alpha1 import PlanStatus
from mamba_api.v1alpha1.conditions import ConditionType, Reason
from mamba_operator.children.engine_admin import GetPlan
from mamba_operator.objects.concurrency import run_concurrently
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, metadata, name_of
from mamba_operator.objects.pod_trouble import serves
from mamba_operator.observation.snapshot import ReportedPlan
from mamba_operator.render.revision import label_of, pod_revision

log = structlog.get_logger(__name__)
PERIOD = 10.0
"""Seconds between two polls of deployments without a reported plan."""
AGAIN = 60.0
"""Seconds for which a reported plan is not fetched again: a change of strategy changes it."""
CONNECTIONS = 32
"""At once, to engines of all deployments."""
OF_ENGINES = frozenset(
    {Reason.MODEL_UNKNOWN, Reason.DEVICE_MEMORY_UNKNOWN, Reason.PLAN_REPORTED, Reason.PLAN_DIFFERS}
)
"""Reasons of Planned with which engines may have planned for themselves."""


class ReportedPlanPoller:
    """Of one operator that acts.

    Args:
        indices: what the watches hold.
        token: the admin token of the deployment with a uid.
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
        self._indices, self._token, self._get, self._wake, self._now = indices, token, get, wake, now
        self._reports: dict[Key, tuple[ReportedPlan, object, float]] = {}
        """Reported plan, generation of the object that it was fetched for, and time of the request
        (`now`)."""
        self._connections = asyncio.Semaphore(CONNECTIONS)

    def reported(self, key: Key) -> ReportedPlan | None:
        """The plan that an engine of the deployment reported last."""
        known = self._reports.get(key)
        return known[0] if known is not None else None

    async def run(self) -> None:
        """Poll periodically; ends only by cancellation."""
        while True:
            await self.poll()
            await asyncio.sleep(PERIOD)

    async def poll(self) -> None:
        """Poll every deployment that the operator has no plan of its own for."""
        unplanned = {
            key: owners[0]
            for key in self._indices.keys(MAMBA_DEPLOYMENT)
            if (owners := self._indices.of(MAMBA_DEPLOYMENT, key)) and _plans_for_itself(owners[0])
        }
        for key in self._reports.keys() - unplanned.keys():
            del self._reports[key]
        polls = {key: self._poll(key, owner) for key, owner in unplanned.items()}
        await run_concurrently(polls, "plan_watch_broken")

    async def _poll(self, key: Key, owner: Manifest) -> None:
        engine = _serving(self._indices, key)
        if engine is None:
            return
        pod, revision = engine
        reported, reported_generation, requested_at = self._reports.get(key, (None, None, 0.0))
        generation, now = metadata(owner).get("generation"), self._now()
        if (
            reported is not None
            and (reported.revision, reported_generation) == (revision, generation)
            and now - requested_at < AGAIN
        ):
            return
        async with self._connections:
            text = await self._get(pod["status"]["podIP"], self._token(str(metadata(owner).get("uid"))))
        if text is None:
            return
        try:
            new = ReportedPlan(revision, PlanStatus.model_validate_json(text, by_alias=True, by_name=False))
        except ValidationError as error:
            log.warning("plan_not_understood", pod=name_of(pod), error=str(error))
            return
        self._reports[key] = new, generation, now
        if new != reported:
            self._wake(key)


def _plans_for_itself(owner: Manifest) -> bool:
    # Of each object at each look: without reading its whole status.
    status = owner.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return any(
        isinstance(one, dict) and one.get("type") == ConditionType.PLANNED and one.get("reason") in OF_ENGINES
        for one in (conditions if isinstance(conditions, list) else ())
    )


def _serving(indices: Indices, key: Key) -> tuple[Manifest, str] | None:
    """An engine of the revision that is wanted, which answers, and that revision."""
    wanted = names.Children(key.name).engine
    revision = next((label_of(one) for one in indices.of(DEPLOYMENT, key) if name_of(one) == wanted), None)
    for pod in indices.of(POD, key):
        if revision and serves(pod) and pod_revision(pod) == revision and pod["status"].get("podIP"):
            return pod, revision
    return None
