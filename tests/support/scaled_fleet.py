"""A fleet that an autoscaler scales, as fluid: requests per second in, a queue, pods that take time to start.

One look every ten seconds, in numbers alone: no clock, no process. What is seen may be some looks old.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import ScalingDecision, decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import EngineLoad, GatewayTraffic, Observation

LOOK = 10.0
PROMPT, OUTPUT = 2000, 100
"""Tokens of a request."""
SPEED, STEP = 10_000.0, 0.02
"""Speed of one engine: prompt tokens per second, seconds of a decoding step."""


def load(engines: int, requests: float, **more: float) -> EngineLoad:
    """Return the report of engines that serve this many requests per second and keep up."""
    running = round(requests * OUTPUT * STEP * 1.5)
    return EngineLoad(
        **{
            "engines": engines, "running": running, "places": 64 * engines, "arrivals": requests,
            "prompt_rate": requests * PROMPT, "output_rate": requests * OUTPUT, "prefill_speed": SPEED,
            "decode_step": STEP, **more,
        }
    )  # fmt: skip


def seen(asked: int, requests: float = 0.0, *, at: float = 0.0, **more: object) -> Observation:
    """Return an observation of a complete fleet that keeps up."""
    fields: dict[str, object] = {
        "at": at, "desired": asked, "ready": asked, "load": load(asked, requests) if asked else None,
        "traffic": GatewayTraffic(arrivals=requests), **more,
    }  # fmt: skip
    return Observation(**fields)  # type: ignore[arg-type]


class Fleet:
    """`decisions` and `asked` are what the autoscaler made of it, of what was seen `late` looks before.

    `silent`: no engine and no gateway answers. `gateways_silent`: no gateway does. `restart`: the autoscaler
    begins anew and knows nothing.
    """

    def __init__(
        self, config: AutoscalerConfig, *, engines: int = 1, start: float = 60.0, late: int = 0
    ) -> None:
        self.config, self.memory, self.asked = config, AutoscalerMemory(), engines
        self.at, self._start, self._queue = 0.0, start, 0.0
        self._born = {f"pod-{number}": -start for number in range(engines)}
        self._count = engines
        self.decisions: list[ScalingDecision] = []
        self.clock: Callable[[float], float] = lambda at: at
        self.silent = self.gateways_silent = False
        self._reported: set[str] = set()
        self._on_their_way = deque[Observation](maxlen=late + 1)

    def run(self, requests: Iterable[float]) -> list[int]:
        """Return the number of engines after each look."""
        return [self._look(each) for each in requests]

    def restart(self) -> None:
        self.memory, self._reported = AutoscalerMemory(), set()

    def _look(self, requests: float) -> int:
        self.at += LOOK
        ready = [name for name, born in self._born.items() if self.at - born >= self._start]
        pending = tuple(sorted(set(self._born) - set(ready)))
        capacity = len(ready) * SPEED / PROMPT
        self._queue = max(self._queue + (requests - capacity) * LOOK, 0.0)
        heard = set() if self.silent else set(ready)
        unrated, self._reported = len(heard - self._reported), heard
        rated = 1.0 - unrated / len(ready) if ready else 0.0
        waits = {"waiting": round(self._queue), "waiting_tokens": self._queue * PROMPT}
        engine_load = load(len(ready), min(requests, capacity), **waits,
                    arrivals=requests, prompt_rate=requests * PROMPT)  # fmt: skip
        rates = ("arrivals", "prompt_rate", "output_rate")
        engine_load = msgspec.structs.replace(
            engine_load, unrated=unrated, **{name: getattr(engine_load, name) * rated for name in rates}
        )
        traffic = GatewayTraffic(arrivals=requests, held=0 if ready else round(requests * LOOK))
        self._on_their_way.append(
            Observation(
                at=self.clock(self.at), desired=self.asked, ready=len(ready), pending=pending,
                load=engine_load if ready and not self.silent else None,
                traffic=None if self.silent or self.gateways_silent else traffic,
            )
        )  # fmt: skip
        if len(self._on_their_way) < (self._on_their_way.maxlen or 1):
            return self.asked
        # The number that is asked for is the autoscaler's own: that is known at once.
        observation = msgspec.structs.replace(self._on_their_way[0], desired=self.asked)
        decision = decide(observation, self.config, self.memory)
        self.memory, self.asked = decision.memory, decision.target
        self.decisions.append(decision)
        while len(self._born) < decision.target:
            self._count += 1
            self._born[f"pod-{self._count}"] = self.at
        for name in sorted(self._born, key=lambda one: -self._born[one])[: len(self._born) - decision.target]:
            del self._born[name]
        return decision.target


def reversals(targets: list[int]) -> int:
    """Count the changes of direction."""
    steps = [b - a for a, b in itertools.pairwise(targets) if a != b]
    return sum(a * b < 0 for a, b in itertools.pairwise(steps))
