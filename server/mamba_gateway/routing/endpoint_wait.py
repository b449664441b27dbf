"""Hold: a request without an engine waits for one; a rollout or a wake from zero takes a moment.

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
    """Of one gateway. `wake` is called while a request waits."""

    def __init__(self, pool: Pool, metrics: GatewayMetrics, wake: Callable[[], None]) -> None:
        self._pool, self._metrics, self._wake = pool, metrics, wake

    async def until_decided(
        self, decide: Decide, model: str | None, deadline: float, permit: Permit | None = None
    ) -> RoutingRecord:
        """The first decision for an engine, by `deadline` in the loop's time.

        Raises ModelNotFound, UpstreamLost when each was tried, NoEndpoint, and TooManyRequests when engines
        came and none had a place in time.
        """
        found = decide()
        return self.decided(found) or await self.wait(found, decide, model, deadline, permit)

    def decided(self, found: RoutingRecord | NoCandidate) -> RoutingRecord | None:
        """What was decided, if that was an engine; else somebody has to wait."""
        if not isinstance(found, RoutingRecord):
            return None
        if found.decision.endpoint.draining:
            self._wake()  # nothing else is left, and nobody else may ask for more
        return found

    async def wait(
        self,
        found: RoutingRecord | NoCandidate,
        decide: Decide,
        model: str | None,
        deadline: float,
        permit: Permit | None = None,
    ) -> RoutingRecord:
        """What `until_decided` gives, where `found` was no engine. The request has no permit meanwhile: many
        that waited together go to an engine that comes as fast as it has places, and the keys take turns."""
        while not isinstance(found, RoutingRecord):
            found = await self._engine(found, decide, model, deadline, permit)
            if permit is not None:
                await permit.resume(max(0.0, deadline - asyncio.get_running_loop().time()))
                found = decide()
        return found

    async def _engine(
        self,
        found: RoutingRecord | NoCandidate,
        decide: Decide,
        model: str | None,
        deadline: float,
        permit: Permit | None,
    ) -> RoutingRecord | NoCandidate:
        with self._metrics.held.track_inprogress():
            while not isinstance(found, RoutingRecord):
                if found is NoCandidate.MODEL_UNKNOWN or not self._pool.may_serve(model):
                    raise ModelNotFound(no_such_model(model, self._pool.model_names()), param="model")
                self._wake()  # from here on an engine would help: nonsense starts none
                if found is NoCandidate.ALL_TRIED:
                    raise UpstreamLost(NO_ANSWER)
                if found is NoCandidate.NONE_ASKED_FOR:
                    raise self._none(found)
                changed = self._pool.changed()
                try:
                    async with asyncio.timeout_at(deadline):
                        await (changed if permit is None else permit.while_held(changed))
                except TimeoutError:
                    raise self._none(found) from None
                found = decide()
        return found

    def _none(self, outcome: NoCandidate) -> NoEndpoint:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(self._pool.reasons().items())[:3])
        return NoEndpoint(f"{outcome.value}; retry later" + (f" ({listed})" if listed else ""), retry_after=2)
