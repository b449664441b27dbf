"""The product's autoscaler: its decision and its view of the fleet, told what simulated engines report."""

from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.sample import EngineSample, FleetSample
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import ScalingDecision, decide
from mamba_operator.autoscale.fleet_view import EngineReport, FleetView, GatewayReport
from mamba_operator.autoscale.memory import AutoscalerMemory

GATEWAY = "gateway"


class OwnScaler:
    """With the defaults of the product."""

    period, delay = 5.0, 1.0

    def __init__(
        self,
        profile: EngineProfile,
        *,
        ttft: float | None,
        tpot: float | None,
        least: int,
        most: int,
        bypassed: bool = False,
    ) -> None:
        self._profile = profile
        self._view = FleetView()
        self._memory = AutoscalerMemory()
        self.config = AutoscalerConfig(
            min_replicas=least, max_replicas=most, ttft_target=ttft, tpot_target=tpot, bypassed=bypassed
        )
        self.last: ScalingDecision | None = None

    def target(self, sample: FleetSample) -> int:
        """Return the decided number of engines."""
        gateway = GatewayReport(
            in_flight=sample.in_flight, held=sample.unrouted, arrivals_total=float(sample.arrivals)
        )
        seen = self._view.observe(
            sample.at,
            desired=sample.desired,
            ready={engine.name: self._report(engine) for engine in sample.ready},
            pending=sample.pending,
            gateways={GATEWAY: gateway},
            readers_full=sample.readers_full,
        )
        self.last = decide(seen, self.config, self._memory)
        self._memory = self.last.memory
        return self.last.target

    def _report(self, engine: EngineSample) -> EngineReport:
        totals = engine.totals
        return EngineReport(
            running=engine.running,
            waiting=engine.waiting,
            places=self._profile.max_running,
            slots_used=engine.slots_used,
            pages_used=engine.pages_used,
            credits=engine.credits,
            waiting_tokens=engine.waiting_tokens,
            prefill_speed=self._profile.prefill_tokens_per_second,
            decode_step=engine.decode_seconds,
            arrivals_total=float(totals.arrivals),
            prompt_tokens_total=float(totals.prompt_tokens),
            cached_tokens_total=float(totals.cached_tokens),
            output_tokens_total=float(totals.output_tokens),
            first_tokens_total=float(totals.first_tokens),
            first_tokens_late_total=float(totals.first_tokens_late),
            finished_total=float(totals.finished),
            finished_slow_total=float(totals.finished_slow),
        )
