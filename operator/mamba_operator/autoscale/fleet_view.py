"""`FleetView`: combines the reports of engines and gateways into one `Observation`. Holds the last reports.

Rates are differences of counters. A counter that fell has restarted from zero. An engine that was not seen
before has no rate, because the time over which it counted is unknown.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mamba_operator.autoscale.observation import EngineLoad, GatewayTraffic, Observation

MAX_SILENT_NAMES = 3
"""Largest number of pods without an answer that are named."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what one engine reported of itself at one moment.

    Its counters count from the start of the engine.
    """

    running: int = 0
    waiting: int = 0
    places: int = 0
    """Sequences that may run at once; 0 = no bound but memory."""
    slots_used: float = 0.0
    """Share of state slots in use, 0 to 1: by sequences, and by states that arrive or wait for a reader."""
    pages_used: float = 0.0
    """Share of KV pages in use, 0 to 1."""
    credits: int = 0
    """States that the engine can take from other engines now."""
    waiting_tokens: float = 0.0
    prefill_speed: float = 0.0
    """Prompt tokens per second; 0 = not measured."""
    decode_step: float = 0.0
    """Seconds of a step that only decodes; 0 = not measured."""
    arrivals_total: float = 0.0
    """Requests that arrived."""
    prompt_tokens_total: float = 0.0
    """Prompt tokens of requests that arrived."""
    cached_tokens_total: float = 0.0
    """Prompt tokens that were resumed from a checkpoint."""
    output_tokens_total: float = 0.0
    first_tokens_total: float = 0.0
    """Sequences that got a first token."""
    first_tokens_late_total: float = 0.0
    """Sequences whose first token came after the target."""
    finished_total: float = 0.0
    """Sequences that ended with a known time per token."""
    finished_slow_total: float = 0.0
    """Sequences that ended above the target per token."""


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what one gateway reported of its requests at one moment."""

    in_flight: int = 0
    queued: int = 0
    held: int = 0
    arrivals_total: float = 0.0
    """Requests that arrived since its start."""


class FleetView:
    """Remembers the last reports of one deployment's pods, and computes observations from the next ones."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._engines: dict[str, EngineReport] = {}
        self._gateways: dict[str, GatewayReport] = {}

    def observe(
        self,
        at: float,
        *,
        desired: int,
        ready: Mapping[str, EngineReport | None],
        pending: tuple[str, ...] = (),
        gateways: Mapping[str, GatewayReport | None],
        candidates: Mapping[str, EngineReport | None] | None = None,
        woken: bool = False,
        readers_full: bool = False,
    ) -> Observation:
        """Return the observation of one poll; rates are over the time since the previous poll.

        Args:
            at: seconds on any clock.
            desired: the number of engines in force.
            ready: report of each pod that may be sent requests, by name; None = it did not answer.
            pending: pods that have never been ready.
            gateways: report of each ready gateway pod, by name; None = it did not answer.
            candidates: report of each engine of a canary that answers clients. Its load is counted, because
                the other engines have to bear that load once the canary has ended; the engine itself is not.
            woken: whether a gateway has asked for an engine that has not been started yet.
            readers_full: whether the engines that read the states of these engines have no room for more.
        """
        passed = at - self._at if self._at is not None else 0.0
        engines = {name: report for name, report in sorted(ready.items()) if report is not None}
        tried = {name: report for name, report in sorted((candidates or {}).items()) if report is not None}
        answered = {name: report for name, report in sorted(gateways.items()) if report is not None}
        load = self._load(engines, tried, passed) if engines else None
        if load is not None and len(tried) < len(candidates or {}):
            load = msgspec.structs.replace(load, unrated=load.unrated + len(candidates or {}) - len(tried))
        traffic = self._traffic(answered, passed) if gateways and len(answered) == len(gateways) else None
        self._at, self._engines, self._gateways = at, {**engines, **tried}, answered
        return Observation(
            at=at, desired=desired, ready=len(ready), pending=tuple(sorted(pending)), load=load,
            traffic=traffic, woken=woken, readers_full=readers_full,
            silent=_silent(ready, candidates or {}, gateways),
        )  # fmt: skip

    def _load(
        self, engines: Mapping[str, EngineReport], tried: Mapping[str, EngineReport], passed: float
    ) -> EngineLoad:
        """Return the load of all engines. `tried` are the engines of a canary, whose load is added.

        Sizes, speeds and saturation are only those of `engines`, by name. `passed` is the seconds since the
        last reports.
        """
        reports, serving = engines.values(), [*engines.values(), *tried.values()]
        rates = [_Rates(self._engines.get(name), report, passed) for name, report in engines.items()]
        saturated = [rate for rate in rates if rate.saturated()]
        rates += [_Rates(self._engines.get(name), report, passed) for name, report in tried.items()]

        def total(field: str) -> Any:
            return sum(getattr(report, field) for report in serving)

        def rate(counter: str) -> float:
            return sum(engine_rates.rate(counter) for engine_rates in rates)

        def count(counter: str) -> float:
            return sum(engine_rates.count(counter) for engine_rates in rates)

        return EngineLoad(
            engines=len(engines),
            unrated=sum(not engine_rates.known for engine_rates in rates) if passed > 0 else len(rates),
            running=total("running"),
            waiting=total("waiting"),
            places=sum(report.places for report in reports),
            slots_used=total("slots_used"),
            pages_used=total("pages_used"),
            credits=sum(report.credits for report in reports),
            waiting_tokens=total("waiting_tokens"),
            arrivals=rate("arrivals_total"),
            prompt_rate=rate("prompt_tokens_total"),
            cached_rate=rate("cached_tokens_total"),
            output_rate=rate("output_tokens_total"),
            prefill_speed=_mean_measured(report.prefill_speed for report in reports),
            # Steps are learned by the sequences of an engine, and those of candidates are among the sum.
            decode_step=0.0 if tried else _mean_measured(report.decode_step for report in reports),
            saturated=len(saturated),
            saturated_prompt_rate=sum(engine_rates.computed() for engine_rates in saturated),
            saturated_output_rate=sum(engine_rates.rate("output_tokens_total") for engine_rates in saturated),
            first_tokens=count("first_tokens_total"),
            first_tokens_late=count("first_tokens_late_total"),
            finished=count("finished_total"),
            finished_slow=count("finished_slow_total"),
        )

    def _traffic(self, gateways: Mapping[str, GatewayReport], passed: float) -> GatewayTraffic:
        arrived = sum(
            _increase(self._gateways[name].arrivals_total, report.arrivals_total)
            for name, report in gateways.items()
            if name in self._gateways
        )
        return GatewayTraffic(
            in_flight=sum(report.in_flight for report in gateways.values()),
            queued=sum(report.queued for report in gateways.values()),
            held=sum(report.held for report in gateways.values()),
            arrivals=arrived / passed if passed > 0 else 0.0,
        )


class _Rates:
    """Computes from two reports of one engine how fast its counters grew."""

    def __init__(self, before: EngineReport | None, now: EngineReport, passed: float) -> None:
        self._before, self._now, self._passed = before, now, passed

    @property
    def known(self) -> bool:
        """Whether there was an earlier report, so that rates are known."""
        return self._before is not None

    def count(self, counter: str) -> float:
        """Return the increase of a counter, a field of the reports; 0 without an earlier report."""
        if self._before is None:
            return 0.0
        return _increase(getattr(self._before, counter), getattr(self._now, counter))

    def rate(self, counter: str) -> float:
        """Return the increase of a counter per second."""
        return self.count(counter) / self._passed if self._passed > 0 else 0.0

    def computed(self) -> float:
        """Return the prompt tokens computed per second: those that arrived, less those resumed or waiting."""
        if self._before is None or self._passed <= 0:
            return 0.0
        left = (self._now.waiting_tokens - self._before.waiting_tokens) / self._passed
        return max(self.rate("prompt_tokens_total") - self.rate("cached_tokens_total") - left, 0.0)

    def saturated(self) -> bool:
        """Return whether the engine always had prompts to compute: those waiting at first lasted to the end.

        Prompts that wait at both reports prove nothing, because arrivals coincide now and then. Counted as
        saturation, half-idle engines would teach the autoscaler half of the real capacity.
        """
        before = self._before
        return (
            before is not None
            and before.waiting > 0
            and self._now.waiting > 0
            and self.computed() * self._passed <= before.waiting_tokens
        )


def _mean_measured(values: Iterable[float]) -> float:
    """Return the mean of the positive values; 0 without any, which means not measured."""
    measured = [value for value in values if value > 0]
    return sum(measured) / len(measured) if measured else 0.0


def _silent(*reports: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the first few pods without a report."""
    return tuple(
        sorted(name for by_pod in reports for name, report in by_pod.items() if report is None)[
            :MAX_SILENT_NAMES
        ]
    )


def _increase(before: float, now: float) -> float:
    return now - before if now >= before else now
