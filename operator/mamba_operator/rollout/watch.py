"""`RolloutWatch`: while engines of two revisions run, asks gateways how requests fare with each.

Beside the reconcile passes, as the autoscaler: a gateway that does not answer delays none of them. It writes
nothing; a pass decides with what was counted (`rollback`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import ReportInvalid, series
from mamba_operator.objects.concurrency import run_concurrently
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, name_of
from mamba_operator.objects.pod_trouble import answers, is_engine, is_gateway
from mamba_operator.render.revision import pod_revision
from mamba_operator.rollout.attempts import Attempts, AttemptWindow

ATTEMPTS, ALWAYS_THERE = "mambaserve_gateway_endpoint_attempts_total", "mambaserve_gateway_in_flight"
PERIOD = 5.0
"""Seconds between two looks: several fall into the time for which a new engine serves beside an old one."""


def read_attempts(text: str) -> dict[str, Attempts]:
    """What a gateway has counted of each engine, by the name of its pod. Raises ReportInvalid."""
    found = series(text, frozenset((ATTEMPTS, ALWAYS_THERE)))
    if ALWAYS_THERE not in found:
        raise ReportInvalid(f"no {ALWAYS_THERE} in it")
    counted: dict[str, Attempts] = {}
    for labels, value in found.get(ATTEMPTS, ()):
        of = Attempts(failed=value) if labels.get("outcome") == "failed" else Attempts(answered=value)
        pod = labels.get("endpoint", "")
        counted[pod] = counted.get(pod, Attempts()) + of
    return counted


class RolloutWatch:
    """Of one operator that acts.

    Args:
        indices: what the watches hold.
        read: gives the `/metrics` of a pod.
        wake: told of which deployment an engine failed requests.
        now: a clock that nobody sets.
    """

    def __init__(
        self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None], *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._indices, self._read, self._wake, self._now = indices, read, wake, now
        self._windows: dict[Key, AttemptWindow] = {}

    def attempts(self, key: Key) -> Mapping[str, Attempts]:
        """By revision, how requests fared lately; empty where engines of one revision alone run."""
        window = self._windows.get(key)
        return window.sums() if window is not None else {}

    async def run(self) -> None:
        """Look for ever; ends only by cancellation."""
        while True:
            await self.poll()
            await asyncio.sleep(PERIOD)

    async def poll(self) -> None:
        """Once at every deployment with engines of two revisions, all at the same time."""
        rolling = {
            key: revisions
            for key in self._indices.keys(MAMBA_DEPLOYMENT)
            if len(set((revisions := self._revisions(key)).values())) > 1
        }
        for key in self._windows.keys() - rolling.keys():
            del self._windows[key]
        polls = {key: self._poll(key, revisions) for key, revisions in rolling.items()}
        await run_concurrently(polls, "rollout_watch_broken")

    def _revisions(self, key: Key) -> Mapping[str, str]:
        """Of each engine pod, one that drains included: it serves on for a while."""
        found = ((name_of(pod), pod_revision(pod)) for pod in self._indices.of(POD, key) if is_engine(pod))
        return {name: revision for name, revision in found if revision is not None}

    async def _poll(self, key: Key, revisions: Mapping[str, str]) -> None:
        window = self._windows.setdefault(key, AttemptWindow())
        gateways = [pod for pod in self._indices.of(POD, key) if is_gateway(pod) and answers(pod)]
        reports = await pod_reports(self._read, gateways, read_attempts)
        if window.observe(self._now(), revisions, reports):
            self._wake(key)
