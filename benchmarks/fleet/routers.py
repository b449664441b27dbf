"""Ways to choose an engine, behind one gateway: the product's own router, and what others do.

The gateway's pool and its reports, up to a second old, are the product's for all of them.
"""

from typing import Literal, get_args

from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.request import Request
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import available
from mamba_gateway.routing.scoring import home_of
from mamba_prefix.page_chain import mixed_one

RouterName = Literal["ours", "least-load", "attention-prefix", "consistent-hash"]
ROUTERS: tuple[RouterName, ...] = get_args(RouterName)
BOUND = 1.25
"""Load of an engine by the mean, above which consistent hashing goes on to the next (as KubeAI's default)."""


class LeastLoad(SimulatedGateway):
    """By load alone."""

    prefix_weight = 0.0


class AttentionPrefix(SimulatedGateway):
    """By the pages of attention that an engine has, resumable or not."""

    knowledge = "attention"


class ConsistentHash(SimulatedGateway):
    """By the beginning of the prompt, with bounded loads."""

    prefix_weight = 0.0

    def send(self, request: Request) -> str | None:
        """Choose the engine for a request; None: no engine is ready."""
        ready = available(self._pool.snapshot())
        if not ready:
            return None
        most = BOUND * (1 + sum(each.load for each in ready)) / len(ready)
        light = [each for each in ready if each.load <= most]
        chosen = home_of(light, self._key(request))
        request.ticket = self._pool.begin(chosen.url, float(request.prompt_tokens))
        return chosen.name

    def _key(self, request: Request) -> int:
        if self._identity and (home := PromptPrefix.of(request.prompt()[:256]).home) is not None:
            return home
        return mixed_one(request.number)


GATEWAYS: dict[RouterName, type[SimulatedGateway]] = {
    "ours": SimulatedGateway,
    "least-load": LeastLoad,
    "attention-prefix": AttentionPrefix,
    "consistent-hash": ConsistentHash,
}
