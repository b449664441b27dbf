"""`RolloutWatch`: polls gateways for the failed attempts of each revision while engines of two revisions run.

Wired by `main`; a pass decides by the counts (`rollback`).
"""

import time
from collections.abc import Callable, Mapping

from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import ReportInvalid, series
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import POD
from mamba_operator.objects.manifest import Key, name_of, pod_revision
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import is_engine, role_of
from mamba_operator.objects.serving_gateways import serving_gateways
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


class RolloutWatch(PodPoller[Mapping[str, str], AttemptWindow]):
    """The part of the operator that polls gateways about failed attempts. One instance per active operator.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        read: reads the `/metrics` of a pod.
        wake: called with each deployment of which an engine failed requests.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None], *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(
            indices, wake, period=ATTEMPTS_POLL_SECONDS, failure_event="attempt_poll_failed", now=now
        )
        self._read = read

    def attempts(self, key: Key) -> Mapping[str, Attempts]:
        """Return the recent attempts by revision; empty while there is only one revision."""
        window = self._reports.get(key)
        return window.sums() if window is not None else {}

    def _select(self, key: Key) -> Mapping[str, str] | None:
        """Return the revision of each engine pod by name, also of draining pods, which still serve.

        The result is None if the engines of each role have one revision: then there is nothing to compare.
        The revisions of two pools always differ.
        """
        engines = [pod for pod in self._indices.of(POD, key) if is_engine(pod)]
        revisions = {name_of(pod): revision for pod in engines if (revision := pod_revision(pod)) is not None}
        of_roles = {(role_of(pod), pod_revision(pod)) for pod in engines if name_of(pod) in revisions}
        return revisions if len(of_roles) > len({role for role, _ in of_roles}) else None

    async def _update(self, key: Key, selection: Mapping[str, str]) -> bool:
        window = self._reports.setdefault(key, AttemptWindow())
        reports = await pod_reports(self._read, serving_gateways(self._indices, key), read_attempts)
        return window.observe(self._now(), selection, reports)
