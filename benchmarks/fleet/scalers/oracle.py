"""An autoscaler that has read the trace: engines are there when work comes that is known beforehand."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.request import Request
from mamba_cli.fleet.sample import FleetSample
from mamba_planner.arithmetic import prefill_work

BUCKET = 15.0
TOGETHER = 16
"""Sequences that are taken to share a step."""
USE = 0.75
"""Target utilization of an engine, low enough that requests seldom wait for each other."""


def work(request: Request, profile: EngineProfile) -> float:
    """Return the seconds of an engine that a request takes, if it resumes all that can be."""
    computed = request.prompt_tokens - request.shared
    prompt = prefill_work(request.shared, request.prompt_tokens, profile.attention_ratio)
    steps = computed / profile.chunk_tokens + request.outputs / TOGETHER
    context = (request.prompt_tokens + request.outputs / 2) * profile.context_seconds
    return (
        prompt / profile.prefill_tokens_per_second
        + steps * profile.step_seconds
        + request.outputs * (profile.sequence_seconds + context)
    )


def needed(requests: Sequence[Request], profile: EngineProfile, use: float = USE) -> list[tuple[float, int]]:
    """Return (second, engines) for each `BUCKET`: its work and half of that of its neighbours, evenly."""
    if not requests:
        return []
    buckets = [0.0] * (int(requests[-1].arrived_at / BUCKET) + 1)
    for request in requests:
        buckets[int(request.arrived_at / BUCKET)] += work(request, profile)
    needs = []
    for number in range(len(buckets)):
        around = buckets[max(0, number - 1) : number + 2]
        mean = (sum(around) + buckets[number]) / (len(around) + 1)
        needs.append((number * BUCKET, max(1, -int(-mean / BUCKET / use // 1))))
    return needs


class Oracle:
    """Keeps what is needed from now to when an engine that is asked for now would be ready, and a while."""

    period, delay = BUCKET, 0.0

    def __init__(self, curve: Sequence[tuple[float, int]], ahead: float) -> None:
        self._times = [at for at, _ in curve]
        self._engines = [engines for _, engines in curve]
        self._ahead = ahead

    def target(self, sample: FleetSample) -> int:
        """Return the largest need in that time."""
        first = bisect_left(self._times, sample.at - BUCKET)
        last = bisect_right(self._times, sample.at + self._ahead)
        return max(self._engines[first:last], default=1)
