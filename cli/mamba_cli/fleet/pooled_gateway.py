"""`PooledGateway`: gateway of a simulated fleet of two pools, with the product's choice of both engines.

A prompt of which the decode engine would have to compute enough goes to a prefill engine first. The decode
engine is chosen again once the state is there, as in the product.
"""

from dataclasses import dataclass
from typing import Any

from mamba_cli.fleet.gateway import SimulatedGateway, url_of
from mamba_cli.fleet.pod import Pod
from mamba_cli.fleet.request import Request
from mamba_gateway.hand_over import TransferReport
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import NoCandidate, RoutingRecord
from mamba_gateway.routing.router import Router


@dataclass(slots=True, eq=False)
class PromptLeg:
    """A request whose prompt a prefill engine computes, until a decode engine has the state."""

    request: Request
    depth: int
    """Tokens that are handed over, in whole pages."""
    first: RoutingRecord
    """Choice of a decode engine before the prompt was computed."""
    choice: RoutingRecord
    """Choice of the prefill engine."""
    prompt: Request
    """The prompt as the prefill engine sees it: a request without outputs."""


class PooledGateway(SimulatedGateway):
    """Sends long prompts to prefill engines, and their states to decode engines."""

    _router: Router

    def report(self, pod: Pod) -> None:
        """Give the pool the report of one pod's engine, with its role and its credits."""
        engine = pod.engine
        transfer = TransferReport(pod.name, pod.name, pod.role, engine.credits)
        self._pool.report(
            url_of(pod.name), engine.report(draining=pod.phase == "draining", transfer=transfer)
        )

    def choose(self, request: Request, page: int, least_tokens: int) -> PromptLeg | None:
        """Choose a prefill engine for a prompt; return the leg to it.

        The result is None if no prefill engine gets the prompt: the decode engine has all but a few tokens
        cached, no whole page lies before the prompt's last token, or no engine is ready.

        Args:
            request: the request.
            page: tokens of a page.
            least_tokens: fewest tokens to compute for which a prefill engine is asked.
        """
        depth = (request.prompt_tokens - 1) // page * page
        prefix = self._prefix(request)
        first = self._decided(request, prefix)
        if first is None or request.prompt_tokens - first.decision.resumable < least_tokens or not depth:
            return None
        choice = self._router.decide_prefill(first, ())
        if isinstance(choice, NoCandidate):
            return None
        tokens = request.prompt
        prompt = Request(
            request.number, request.arrived_at, lambda: tokens()[:depth], depth, outputs=0, hand_over=True,
            engine=choice.decision.endpoint.name, ticket=self._router.sent(choice, prefix),
        )  # fmt: skip
        return PromptLeg(request, depth, first, choice, prompt)

    def hand_over(self, leg: PromptLeg) -> str | None:
        """Return the decode engine that gets the state of a computed prompt; None if none is ready."""
        request, prefix = leg.request, self._prefix(leg.request)
        record = self._router.decide_answer(leg.first, leg.choice, leg.depth, prefix, ())
        if isinstance(record, NoCandidate):
            return None
        request.ticket = self._router.sent(record, prefix)
        return record.decision.endpoint.name

    def _prefix(self, request: Request) -> PromptPrefix | None:
        return PromptPrefix.of(request.prompt()) if self._identity else None

    def _decided(self, request: Request, prefix: PromptPrefix | None) -> RoutingRecord | None:
        record: Any = self._router.decide(None, prefix, body_bytes=4 * request.prompt_tokens)
        return None if isinstance(record, NoCandidate) else record
