"""`RolloutWatch`: polls gateways for failed attempts at each revision while engines of two revisions run.

It runs concurrently with the reconcile passes: a gateway that does not answer delays none of them. It writes
nothing; a pass decides by the counts (`rollback`).
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

ATTEMPTS, ALWAYS_REPORTED = "mambaserve_gateway_endpoint_attempts_total", "mambaserve_gateway_in_flight"
ATTEMPTS_POLL_SECONDS = 5.0
"""Seconds between two polls: there are several while a new engine serves together with an old one."""


def read_attempts(text: str) -> dict[str, Attempts]:
    """Return the attempts that a gateway has counted, by name of the engine's pod. Raises ReportInvalid."""
    series_by_name = series(text, frozenset((ATTEMPTS, ALWAYS_REPORTED)))
    if ALWAYS_REPORTED not in series_by_name:
        raise ReportInvalid(f"the report has no {ALWAYS_REPORTED}")
    counted: dict[str, Attempts] = {}
    for labels, value in series_by_name.get(ATTEMPTS, ()):
        attempts = Attempts(failed=value) if labels.get("outcome") == "failed" else Attempts(answered=value)
        pod = labels.get("endpoint", "")
        counted[pod] = counted.get(pod, Attempts()) + attempts
    return counted


class RolloutWatch:
    """Polls gateways for failed attempts. One instance per active operator.

    Args:
        indices: objects that the watches hold.
        read: returns the `/metrics` of a pod.
        wake: called with each deployment whose engines failed requests.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None], *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._indices, self._read, self._wake, self._now = indices, read, wake, now
        self._windows: dict[Key, AttemptWindow] = {}

    def attempts(self, key: Key) -> Mapping[str, Attempts]:
        """Return the recent attempts by revision; empty while all engines have the same revision."""
        window = self._windows.get(key)
        return window.sums() if window is not None else {}

    async def run(self) -> None:
        """Poll periodically; ends only by cancellation."""
        while True:
            await self.poll()
            await asyncio.sleep(ATTEMPTS_POLL_SECONDS)

    async def poll(self) -> None:
        """Poll every deployment with engines of two revisions once, all concurrently."""
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
        """Return the revision of each engine pod by its name; draining pods still serve and are included."""
        labels = ((name_of(pod), pod_revision(pod)) for pod in self._indices.of(POD, key) if is_engine(pod))
        return {name: revision for name, revision in labels if revision is not None}

    async def _poll(self, key: Key, revisions: Mapping[str, str]) -> None:
        window = self._windows.setdefault(key, AttemptWindow())
        gateways = [pod for pod in self._indices.of(POD, key) if is_gateway(pod) and answers(pod)]
        reports = await pod_reports(self._read, gateways, read_attempts)
        if window.observe(self._now(), revisions, reports):
            self._wake(key)
