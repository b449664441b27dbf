"""Ways to choose an engine, behind one gateway: the product's own router, and what others do.

The gateway's pool and its reports, up to a second old, are the product's for all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Literal, get_args

from benchmarks.fleet.engine import SimulatedEngine
from benchmarks.fleet.pod import Pod
from benchmarks.fleet.request import Request
from benchmarks.routing import CacheIndex

from mamba_gateway.endpoints import Pool, Target
from mamba_gateway.metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.router import Router
from mamba_gateway.routing import NoCandidate, available
from mamba_gateway.scoring import Weights, home_of

RouterName = Literal["ours", "least-load", "attention-prefix", "consistent-hash"]
ROUTERS: tuple[RouterName, ...] = get_args(RouterName)
BOUND = 1.25
"""Load of an engine by the mean, above which consistent hashing goes on to the next (as KubeAI's default)."""


class Gateway:
    """Sends each request to an engine, by the way of choosing called `name`."""

    def __init__(
        self,
        name: RouterName,
        engines: Mapping[str, SimulatedEngine],
        clock: Callable[[], float],
        *,
        identity: bool,
        seed: int = 0,
    ) -> None:
        self._name, self._engines, self._identity = name, engines, identity
        self._pool = Pool(clock=clock)
        index = CacheIndex(engines, "attention" if name == "attention-prefix" else "resumable")
        self._router = Router(
            self._pool, GatewayMetrics(self._pool.snapshot), Random(seed), index=index, clock=clock,
            weights=Weights(1.0 if name in ("ours", "attention-prefix") else 0.0),
        )  # fmt: skip

    def probe(self, pods: Iterable[Pod]) -> None:
        """Look at those that are ready or drain."""
        pods = list(pods)
        self._pool.set_targets(
            Target(url_of(pod.name), pod.name, draining=pod.phase == "draining") for pod in pods
        )
        for pod in pods:
            self.report(pod)

    def report(self, pod: Pod) -> None:
        """Look at one."""
        self._pool.report(url_of(pod.name), pod.engine.report(draining=pod.phase == "draining"))

    def send(self, request: Request) -> str | None:
        """The engine it goes to; None: none is ready."""
        if self._name == "consistent-hash":
            return self._by_hash(request)
        known = PromptPrefix.of(request.prompt()) if self._by_prefix else None
        found = self._router.decide(None, known, body_bytes=4 * request.prompt_tokens)
        if isinstance(found, NoCandidate):
            return None
        request.ticket = self._router.sent(found, known)
        return found.decision.endpoint.name

    def answered(self, request: Request) -> None:
        """Its first token is here."""
        self._pool.answered(url_of(request.engine), request.ticket)

    def ended(self, request: Request) -> None:
        """The engine is through with it."""
        self._pool.end(url_of(request.engine), request.ticket)

    @property
    def _by_prefix(self) -> bool:
        return self._identity and self._name != "least-load"

    def _by_hash(self, request: Request) -> str | None:
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
        return hash((request.number, "prompt of its own"))


def url_of(name: str) -> str:
    """Where the gateway finds it."""
    return f"http://{name}"
