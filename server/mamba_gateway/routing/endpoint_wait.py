"""A request without an engine waits for one: a rollout or a wake from zero takes a moment.

Used by the relay and by the endpoint picker; it decides nothing itself.
"""

import asyncio
from collections.abc import Callable

from mamba_edge.errors import ModelNotFound
from mamba_gateway.admission.admission import Permit
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.errors import NO_ANSWER, NoEndpoint, UpstreamLost
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.routing.decision import NoCandidate, no_such_model
from mamba_gateway.routing.routing_record import RoutingRecord

Decide = Callable[[], RoutingRecord | NoCandidate]


class EndpointWait:
    """The wait for engines of one gateway. `wake` is called while a request waits."""

    def __init__(self, pool: Pool, metrics: GatewayMetrics, wake: Callable[[], None]) -> None:
        self._pool, self._metrics, self._wake = pool, metrics, wake

    async def until_decided(
        self, decide: Decide, model: str | None, deadline: float, permit: Permit | None = None
    ) -> RoutingRecord:
        """Return the first decision for an engine, by `deadline` in the loop's time.

        Raises ModelNotFound, UpstreamLost when every engine was tried, NoEndpoint, and TooManyRequests when
        engines came and none had a place in time.
        """
        outcome = decide()
        return self.decided(outcome) or await self.wait(outcome, decide, model, deadline, permit)

    def decided(self, outcome: RoutingRecord | NoCandidate) -> RoutingRecord | None:
        """Return the decision if it is for an engine; None = the request has to `wait`."""
        if not isinstance(outcome, RoutingRecord):
            return None
        if outcome.decision.endpoint.draining:
            self._wake()  # no other engine is left, and perhaps no other request asks for one
        return outcome

    async def wait(
        self,
        outcome: RoutingRecord | NoCandidate,
        decide: Decide,
        model: str | None,
        deadline: float,
        permit: Permit | None = None,
    ) -> RoutingRecord:
        """Wait as `until_decided` does, where the first `outcome` was no engine.

        The request has no permit meanwhile: requests that waited together go to a new engine as fast as it
        has places, and the keys take turns.
        """
        while not isinstance(outcome, RoutingRecord):
            outcome = await self._engine(outcome, decide, model, deadline, permit)
            if permit is not None:
                await permit.resume(max(0.0, deadline - asyncio.get_running_loop().time()))
                outcome = decide()
        return outcome

    async def _engine(
        self,
        outcome: RoutingRecord | NoCandidate,
        decide: Decide,
        model: str | None,
        deadline: float,
        permit: Permit | None,
    ) -> RoutingRecord | NoCandidate:
        with self._metrics.held.track_inprogress():
            while not isinstance(outcome, RoutingRecord):
                if outcome is NoCandidate.MODEL_UNKNOWN or not self._pool.may_serve(model):
                    raise ModelNotFound(no_such_model(model, self._pool.model_names()), param="model")
                self._wake()  # only here, where an engine would help: an unknown model starts none
                if outcome is NoCandidate.ALL_TRIED:
                    raise UpstreamLost(NO_ANSWER)
                if outcome is NoCandidate.NONE_ASKED_FOR:
                    raise self._no_endpoint(outcome)
                changed = self._pool.changed()
                try:
                    async with asyncio.timeout_at(deadline):
                        await (changed if permit is None else permit.while_held(changed))
                except TimeoutError:
                    raise self._no_endpoint(outcome) from None
                outcome = decide()
        return outcome

    def _no_endpoint(self, outcome: NoCandidate) -> NoEndpoint:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(self._pool.reasons().items())[:3])
        return NoEndpoint(f"{outcome.value}; retry later" + (f" ({listed})" if listed else ""), retry_after=2)
