"""One cell of a comparison: workload, engine, router and autoscaler; and the cheapest fixed fleet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from benchmarks.fleet.routers import GATEWAYS, RouterName
from benchmarks.fleet.scalers.hpa import hpa_kv, hpa_queue
from benchmarks.fleet.scalers.kpa import Kpa
from benchmarks.fleet.scalers.oracle import Oracle, needed, work
from benchmarks.fleet.scalers.own import OwnScaler
from benchmarks.fleet.scalers.wva import Wva
from benchmarks.fleet.score import Score, score

from mamba_cli.fleet.engine_group import FixedSize, Scaler, ScalingHistory
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.request import Request, requests_of
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import GOAL, Slo
from mamba_cli.fleet.workload import RequestStream

ScalerName = Literal["ours", "fixed", "hpa-queue", "hpa-kv", "kpa", "wva", "oracle"]
SCALERS: tuple[ScalerName, ...] = get_args(ScalerName)
ORACLE_USES = (0.75, 0.5, 0.35, 0.25)
Progress = Callable[[float], None]
"""Callback that receives the finished share of a run."""


def silent(share: float) -> None:
    """Ignore the progress."""
    del share


@dataclass(frozen=True, slots=True)
class Experiment:
    """Conditions that all runs of a comparison share."""

    stream: RequestStream
    profile: EngineProfile
    slo: Slo
    conditions: FleetEnvironment
    seed: int = 0

    def run(self, router: RouterName, scaler: ScalerName, progress: Progress = silent) -> Score:
        """Run one router with one autoscaler, starting with `conditions.initial` engines."""
        if scaler != "oracle":
            return self._score(self._simulated(router, self._scaler(scaler), self.conditions, progress))
        # It knows the trace, so it also knows how full engines may be made.
        for use in ORACLE_USES:
            run = self._simulated(
                router, self._oracle(use), self.conditions, progress, hopeless=use > ORACLE_USES[-1]
            )
            if _attains(run):
                break
        return self._score(run)

    def run_with_history(
        self, router: RouterName, scaler: ScalerName, progress: Progress = silent
    ) -> tuple[Score, ScalingHistory]:
        """Run one router with one autoscaler other than the oracle; the score, and the sizes of the fleet."""
        run = self._simulated(router, self._scaler(scaler), self.conditions, progress)
        return self._score(run), run.history

    def fixed(self, router: RouterName, replicas: int, progress: Progress = silent) -> Score:
        """Run a fleet of a fixed number of engines."""
        return self._score(self._simulated_fixed(router, replicas, progress))

    def cheapest_fixed(self, router: RouterName, progress: Progress = silent) -> tuple[int, Score]:
        """Return the smallest fixed fleet that attains the goal (else the largest allowed) and its score."""
        low = high = self.conditions.least
        run = self._simulated_fixed(router, high, progress)
        while not _attains(run) and high < self.conditions.most:
            low, high = high + 1, min(self.conditions.most, 2 * high)
            run = self._simulated_fixed(router, high, progress)
        while low < high:
            middle = (low + high) // 2
            tried = self._simulated_fixed(router, middle, progress)
            if _attains(tried):
                high, run = middle, tried
            else:
                low = middle + 1
        return high, self._score(run)

    def starting_with(self, replicas: int) -> "Experiment":
        """Return the same experiment with `replicas` engines at the beginning."""
        return replace(self, conditions=replace(self.conditions, initial=replicas))

    def _simulated_fixed(self, router: RouterName, replicas: int, progress: Progress) -> Simulation:
        return self._simulated(
            router, FixedSize(replicas), replace(self.conditions, initial=replicas), progress, hopeless=True
        )

    def _simulated(
        self,
        router: RouterName,
        scaler: Scaler,
        conditions: FleetEnvironment,
        progress: Progress,
        *,
        hopeless: bool = False,
    ) -> Simulation:
        run = Simulation(
            self.stream, self.profile, GATEWAYS[router], scaler, self.slo, conditions, self.seed, progress
        )
        run.run(least_attainment=GOAL if hopeless else None)
        return run

    def _oracle(self, use: float) -> Oracle:
        ahead = self.conditions.cold_start * (1 + self.conditions.cold_start_spread) + 30.0
        return Oracle(needed(requests_of(self.stream), self.profile, use), ahead)

    def _score(self, run: Simulation) -> Score:
        return score(run, needed(run.requests, self.profile))

    def _scaler(self, name: ScalerName) -> Scaler:
        conditions = self.conditions
        if name == "fixed":
            return FixedSize(conditions.initial)
        if name == "ours":
            return OwnScaler(
                self.profile, ttft=self.slo.ttft, tpot=self.slo.tpot,
                least=conditions.least, most=conditions.most,
            )  # fmt: skip
        if name == "kpa":
            return Kpa(concurrency(requests_of(self.stream), self.profile, self.slo))
        if name == "wva":
            return Wva(self.profile.slabs * self.profile.tokens_per_state)
        return hpa_queue() if name == "hpa-queue" else hpa_kv()


def concurrency(requests: Sequence[Request], profile: EngineProfile, slo: Slo) -> float:
    """Return the number of concurrent requests of a fully used engine, as a load test would measure it.

    By Little's law, of the requests' mean work and of the time they stay: their prompts, and their answers at
    the promised time per token or at that of an engine which is as full as its work allows, if that is less.
    """
    if not requests:
        return 1.0
    each = sum(work(request, profile) for request in requests) / len(requests)
    outputs = sum(request.outputs for request in requests) / len(requests)
    return max(1.0, (slo.ttft + outputs * min(slo.tpot, 2 * profile.step_seconds)) / each)


def _attains(run: Simulation) -> bool:
    return not run.given_up and score(run).sloAttainment >= GOAL
