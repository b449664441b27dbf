"""Gateway of a simulated fleet: the product's pool, router and scorer over simulated engines.

Probe reports are up to a second old, as in the product. Subclasses may choose engines in other ways.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random

from mamba_cli.fleet.cache_index import CacheIndex, Knowledge
from mamba_cli.fleet.engine import SimulatedEngine
from mamba_cli.fleet.pod import Pod
from mamba_cli.fleet.request import Request
from mamba_gateway.endpoints.pool import Pool, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import NoCandidate
from mamba_gateway.routing.router import Router
from mamba_gateway.routing.scoring import RoutingWeights


class SimulatedGateway:
    """A gateway that sends each request to an engine.

    `identity` says whether the trace shows which prompts share a prefix; if not, only load decides.
    """

    knowledge: Knowledge = "resumable"
    prefix_weight = 1.0

    def __init__(
        self,
        engines: Mapping[str, SimulatedEngine],
        clock: Callable[[], float],
        *,
        identity: bool,
        seed: int = 0,
    ) -> None:
        self._identity = identity
        self._pool = Pool(clock=clock)
        self._router = Router(
            self._pool, GatewayMetrics(self._pool.snapshot), Random(seed),
            index=CacheIndex(engines, self.knowledge), clock=clock,
            weights=RoutingWeights(self.prefix_weight),
        )  # fmt: skip

    def probe(self, pods: Iterable[Pod]) -> None:
        """Probe the pods that are ready or draining."""
        pods = list(pods)
        self._pool.set_targets(
            Target(url_of(pod.name), pod.name, draining=pod.phase == "draining") for pod in pods
        )
        for pod in pods:
            self.report(pod)

    def report(self, pod: Pod) -> None:
        """Give the pool the report of one pod's engine, as a probe does."""
        self._pool.report(url_of(pod.name), pod.engine.report(draining=pod.phase == "draining"))

    def send(self, request: Request) -> str | None:
        """Return the name of the engine that gets the request, or None if no engine is ready."""
        prefix = PromptPrefix.of(request.prompt()) if self._identity and self.prefix_weight else None
        record = self._router.decide(None, prefix, body_bytes=4 * request.prompt_tokens)
        if isinstance(record, NoCandidate):
            return None
        request.ticket = self._router.sent(record, prefix)
        return record.decision.endpoint.name

    def answered(self, request: Request) -> None:
        """Record that the first token of the request arrived."""
        self._pool.response_started(url_of(request.engine), request.ticket)

    def ended(self, request: Request) -> None:
        """Record that the engine ended the request."""
        self._pool.end(url_of(request.engine), request.ticket)


def url_of(name: str) -> str:
    """Return the URL by which the gateway knows an engine."""
    return f"http://{name}"
