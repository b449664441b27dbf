"""`FleetView`: from what single engines and gateways report to one `Observation`. Holds the last reports.

Rates are differences of counters. A counter that fell was started anew and counts from zero; an engine that
was not seen before gives no rate, since nobody knows over which time it counted.
"""

from collections.abc import Mapping

import msgspec

from mamba_operator.autoscale.observation import EngineLoad, GatewayTraffic, Observation

SILENT = 3
"""Pods that are named of those that did not answer."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one moment, as it tells it; counters since its start."""

    running: int = 0
    waiting: int = 0
    places: int = 0
    """Sequences that may run at once; 0 = no bound but memory."""
    slots_used: float = 0.0
    """Share, 0 to 1."""
    pages_used: float = 0.0
    """Share, 0 to 1."""
    waiting_tokens: float = 0.0
    prefill_speed: float = 0.0
    """Prompt tokens per second; 0 = not measured."""
    decode_step: float = 0.0
    """Seconds; 0 = not measured."""
    arrivals_total: float = 0.0
    """Requests that came."""
    prompt_tokens_total: float = 0.0
    """Prompt tokens of requests that came."""
    cached_tokens_total: float = 0.0
    """How many of them were resumed from a checkpoint."""
    output_tokens_total: float = 0.0
    first_tokens_total: float = 0.0
    """Sequences that got a first token."""
    first_tokens_late_total: float = 0.0
    """How many of them after the target."""
    finished_total: float = 0.0
    """Sequences that ended, and whose time per token is known."""
    finished_slow_total: float = 0.0
    """How many of them above the target per token."""


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway at one moment."""

    in_flight: int = 0
    queued: int = 0
    held: int = 0
    arrivals_total: float = 0.0
    """Requests that came since its start."""


class FleetView:
    """Of one deployment."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._engines: dict[str, EngineReport] = {}
        self._gateways: dict[str, GatewayReport] = {}

    def observe(
        self,
        at: float,
        *,
        asked: int,
        ready: Mapping[str, EngineReport | None],
        pending: tuple[str, ...] = (),
        gateways: Mapping[str, GatewayReport | None],
        woken: bool = False,
    ) -> Observation:
        """The observation made of one poll; rates are over the time since the poll before it.

        Args:
            at: seconds on any clock.
            asked: number of engines in force.
            ready: report of each pod that may be sent requests, by name; None = it did not answer.
            pending: pods that have never been ready.
            gateways: report of each ready gateway pod, by name; None = it did not answer.
            woken: a gateway has asked for an engine that has not been started yet.
        """
        passed = at - self._at if self._at is not None else 0.0
        engines = {name: one for name, one in sorted(ready.items()) if one is not None}
        doors = {name: one for name, one in sorted(gateways.items()) if one is not None}
        load = self._load(engines, passed) if engines else None
        traffic = self._traffic(doors, passed) if gateways and len(doors) == len(gateways) else None
        self._at, self._engines, self._gateways = at, engines, doors
        return Observation(
            at=at, asked=asked, ready=len(ready), pending=tuple(sorted(pending)), load=load, traffic=traffic,
            woken=woken, silent=_silent(ready, gateways),
        )  # fmt: skip

    def _load(self, engines: Mapping[str, EngineReport], passed: float) -> EngineLoad:
        rates = {name: _Rates(self._engines.get(name), one, passed) for name, one in engines.items()}
        speeds = [one.prefill_speed for one in engines.values() if one.prefill_speed > 0]
        steps = [one.decode_step for one in engines.values() if one.decode_step > 0]
        saturated = [one for one in rates.values() if one.saturated()]
        each, counted = engines.values(), rates.values()
        return EngineLoad(
            engines=len(engines),
            unrated=sum(not one.known for one in counted) if passed > 0 else len(engines),
            running=sum(one.running for one in each),
            waiting=sum(one.waiting for one in each),
            places=sum(one.places for one in each),
            slots_used=sum(one.slots_used for one in each),
            pages_used=sum(one.pages_used for one in each),
            waiting_tokens=sum(one.waiting_tokens for one in each),
            arrivals=sum(one.rate("arrivals_total") for one in counted),
            prompt_rate=sum(one.rate("prompt_tokens_total") for one in counted),
            cached_rate=sum(one.rate("cached_tokens_total") for one in counted),
            output_rate=sum(one.rate("output_tokens_total") for one in counted),
            prefill_speed=sum(speeds) / len(speeds) if speeds else 0.0,
            decode_step=sum(steps) / len(steps) if steps else 0.0,
            saturated=len(saturated),
            saturated_prompt_rate=sum(one.computed() for one in saturated),
            saturated_output_rate=sum(one.rate("output_tokens_total") for one in saturated),
            first_tokens=sum(one.count("first_tokens_total") for one in counted),
            first_tokens_late=sum(one.count("first_tokens_late_total") for one in counted),
            finished=sum(one.count("finished_total") for one in counted),
            finished_slow=sum(one.count("finished_slow_total") for one in counted),
        )

    def _traffic(self, gateways: Mapping[str, GatewayReport], passed: float) -> GatewayTraffic:
        arrived = sum(
            _increase(self._gateways[name].arrivals_total, one.arrivals_total)
            for name, one in gateways.items()
            if name in self._gateways
        )
        return GatewayTraffic(
            in_flight=sum(one.in_flight for one in gateways.values()),
            queued=sum(one.queued for one in gateways.values()),
            held=sum(one.held for one in gateways.values()),
            arrivals=arrived / passed if passed > 0 else 0.0,
        )


class _Rates:
    """What the counters of one engine did between two reports."""

    def __init__(self, before: EngineReport | None, now: EngineReport, passed: float) -> None:
        self._before, self._now, self._passed = before, now, passed

    @property
    def known(self) -> bool:
        """Whether there was a report before, so that its counters tell rates."""
        return self._before is not None

    def count(self, counter: str) -> float:
        """Increase."""
        if self._before is None:
            return 0.0
        return _increase(getattr(self._before, counter), getattr(self._now, counter))

    def rate(self, counter: str) -> float:
        """Increase per second."""
        return self.count(counter) / self._passed if self._passed > 0 else 0.0

    def computed(self) -> float:
        """Prompt tokens per second that were computed: what came, less what was resumed or still waits."""
        if self._before is None or self._passed <= 0:
            return 0.0
        left = (self._now.waiting_tokens - self._before.waiting_tokens) / self._passed
        return max(self.rate("prompt_tokens_total") - self.rate("cached_tokens_total") - left, 0.0)

    def saturated(self) -> bool:
        """Whether it surely never lacked prompts: those that waited at first lasted to the end.

        That some wait at both looks proves nothing, prompts that come meet now and then: taken for
        saturation, half idle engines taught that engines do half of what they should.
        """
        before = self._before
        return (
            before is not None
            and before.waiting > 0
            and self._now.waiting > 0
            and self.computed() * self._passed <= before.waiting_tokens
        )


def _silent(*reports: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the first few pods without a report."""
    return tuple(sorted(name for each in reports for name, one in each.items() if one is None)[:SILENT])


def _increase(before: float, now: float) -> float:
    return now - before if now >= before else now
