"""The parts that relay and endpoint picker of one gateway share: each learns from the other's requests."""

from dataclasses import dataclass

from mamba_edge.exchange.body_budget import BodyBudget
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.routing.endpoint_wait import EndpointWait
from mamba_gateway.routing.router import Router


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The shared parts of one gateway."""

    pool: Pool
    metrics: GatewayMetrics
    admission: Admission
    limiter: RateLimiter
    router: Router
    hold: EndpointWait
    prompts: PromptReader | None
    bodies: BodyBudget
