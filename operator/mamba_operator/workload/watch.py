"""`WorkloadWatch`: polls engines for the traffic that they served, with and without an autoscaler.

Wired by `main`; a pass shows the measurement in the status and decides by it (`strategy_in_force`). Each of
two pools has a measurement of its own: its engines see the part of each request that they serve.
"""

import time
from collections.abc import Callable, Mapping

from mamba_api.choices import ROLES, Role
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, name_of
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import is_candidate, is_engine, role_of, serves
from mamba_operator.objects.recorded_status import recorded_status, recorded_traffic
from mamba_operator.workload.measured_workload import (
    EngineCounts,
    MeasuredWorkload,
    TrafficWindow,
    advanced,
    engine_counts,
    measured_workload,
    window_of,
)
from mamba_operator.workload.workload_status import SELDOM, differs_clearly, recorded_workload

TRAFFIC_POLL_SECONDS = 30.0
"""Seconds between two polls: a window has sixty of them."""
FRESH_SECONDS = 3 * TRAFFIC_POLL_SECONDS
"""Seconds after which the last measurement no longer counts as current."""


class _EngineTraffic:
    """Holds what the watch remembers of the engines of one role from one poll to the next."""

    def __init__(self, recorded: MeasuredWorkload | None) -> None:
        self.window = window_of(recorded) if recorded is not None else TrafficWindow()
        self.counts: dict[str, EngineCounts] = {}
        self.polled_at: float | None = None
        self.answered_at: float | None = None
        """Time at which counters of an engine could last be compared with earlier ones."""
        self.reported, self.woken_at = recorded, float("-inf")
        """The last measurement for which a pass was woken, and the time of that wake-up, in seconds."""


class WorkloadWatch(PodPoller[Manifest, dict[Role, _EngineTraffic]]):
    """The part of the operator that polls engines about their traffic. One instance per active operator.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        read: reads the `/metrics` of a pod.
        wake: called with each deployment whose measured traffic changed clearly.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self,
        indices: Indices,
        read: ReadMetrics,
        wake: Callable[[Key], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            indices, wake, period=TRAFFIC_POLL_SECONDS, failure_event="workload_poll_failed", now=now
        )
        self._read = read

    def measured(self, key: Key) -> dict[Role, MeasuredWorkload]:
        """Return the workload that engines measure, by role, except roles without a recent measurement."""
        workloads = {role: self._measured(traffic) for role, traffic in self._reports.get(key, {}).items()}
        return {role: workload for role, workload in workloads.items() if workload is not None}

    def _measured(self, traffic: _EngineTraffic) -> MeasuredWorkload | None:
        if traffic.answered_at is None or self._now() - traffic.answered_at > FRESH_SECONDS:
            return None
        return measured_workload(traffic.window)

    def _select(self, key: Key) -> Manifest | None:
        owners = self._indices.of(MAMBA_DEPLOYMENT, key)
        return owners[0] if len(owners) == 1 else None

    async def _update(self, key: Key, selection: Manifest) -> bool:
        # The candidate of a canary has a share of the same traffic, or copies of it.
        pods = (pod for pod in self._indices.of(POD, key) if not is_candidate(pod))
        engines = [pod for pod in pods if is_engine(pod) and serves(pod)]
        reports = await pod_reports(self._read, engines, engine_counts)
        by_role: dict[str, dict[str, EngineCounts | None]] = {}
        for pod in engines:
            by_role.setdefault(role_of(pod), {})[name_of(pod)] = reports[name_of(pod)]
        traffics = self._reports.setdefault(key, {})
        changes = [
            self._update_role(traffics, role, by_role.get(role, {}), selection)
            for role in ROLES
            if role in by_role or role in traffics
        ]
        return any(changes)

    def _update_role(
        self,
        traffics: dict[Role, _EngineTraffic],
        role: Role,
        reports: Mapping[str, EngineCounts | None],
        owner: Manifest,
    ) -> bool:
        """Add the counts of the engines of one role; return whether a pass has to look at their traffic.

        No pass has to look before `SELDOM` seconds have passed since the last one that had to, without a
        measurement, or if the traffic has not changed clearly.
        """
        traffic = traffics.get(role)
        if traffic is None:
            traffic = traffics[role] = _EngineTraffic(_recorded(owner, role))
        self._add_counts(traffic, reports)
        measured = self._measured(traffic)
        if measured is None or self._now() - traffic.woken_at < SELDOM:
            return False
        if traffic.reported is not None and not differs_clearly(traffic.reported, measured):
            return False
        traffic.reported, traffic.woken_at = measured, self._now()
        return True

    def _add_counts(self, traffic: _EngineTraffic, reports: Mapping[str, EngineCounts | None]) -> None:
        now = self._now()
        passed = now - traffic.polled_at if traffic.polled_at is not None else 0.0
        counts = {pod: report for pod, report in reports.items() if report is not None}
        traffic.window = advanced(traffic.window, traffic.counts, counts, passed)
        if traffic.counts.keys() & counts.keys():
            traffic.answered_at = now
        # An engine that misses a poll is compared with its last counters when it answers again.
        kept = {pod: old for pod, old in traffic.counts.items() if pod in reports}
        traffic.polled_at, traffic.counts = now, {**kept, **counts}


def _recorded(owner: Manifest, role: Role) -> MeasuredWorkload | None:
    """Return the measurement that an earlier operator wrote into the status; None = there is none."""
    recorded = recorded_traffic(recorded_status(owner), role)
    return recorded_workload(recorded) if recorded is not None else None
