"""Score of a run. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mamba_cli.fleet.request import Request
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import GOAL

BIN = 10.0
"""Seconds of arrivals that are judged together for the time to recover."""


@dataclass(frozen=True, slots=True)
class Score:
    """Results by which one run is judged."""

    sloAttainment: float  # noqa: N815
    """Share of requests that got what they were promised; those that got lost did not."""
    gpuSeconds: float  # noqa: N815
    """For which pods held GPUs, until the last arrival."""
    reversals: int
    """Times that the number asked for turned from growing to shrinking or back."""
    worstPendingExcess: int  # noqa: N815
    """Most engines that were starting beyond what the work of the trace needed then."""
    recoverySeconds: float  # noqa: N815
    """Longest time through which fewer than 95 % of the requests got what they were promised."""
    lostRequests: int  # noqa: N815
    tokenHitRate: float  # noqa: N815
    """Share of prompt tokens that were resumed."""
    recomputedTokens: int  # noqa: N815
    """Prompt tokens computed that some engine had computed before."""
    requests: int
    refused: int
    """Requests that no engine could ever hold; not judged."""
    meanReplicas: float  # noqa: N815
    peakReplicas: int  # noqa: N815
    ttftP50: float  # noqa: N815
    ttftP99: float  # noqa: N815
    tpotP99: float  # noqa: N815
    changes: int
    """Times that the number asked for changed."""


NAMED = (
    "sloAttainment", "gpuSeconds", "reversals", "worstPendingExcess", "recoverySeconds", "lostRequests",
    "tokenHitRate", "recomputedTokens",
)  # fmt: skip
"""Names of the fields that are printed as JSON."""


def score(run: Simulation, needed: Sequence[tuple[float, int]] = ()) -> Score:
    """Score a finished run. `needed`: (second, engines) that the work of the trace takes, in order."""
    judged = [request for request in run.requests if request.engine]
    until = run.stream.seconds
    targets = [target for _, target in run.history.targets]
    total = sum(request.prompt_tokens for request in judged)
    gpu = sum(pod.gpu_seconds(until) for pod in run.pods)
    first = sorted(r.first_token_at - r.arrived_at for r in judged if r.first_token_at is not None)
    return Score(
        sloAttainment=round(sum(map(run.slo.attained, judged)) / max(1, len(judged)), 4),
        gpuSeconds=round(gpu, 1),
        reversals=reversals(targets),
        worstPendingExcess=pending_excess(run.history.supply, needed),
        recoverySeconds=recovery(judged, [run.slo.attained(request) for request in judged]),
        lostRequests=sum(request.lost for request in judged),
        tokenHitRate=round(sum(r.resumed for r in judged) / max(1, total), 4),
        recomputedTokens=sum(max(0, r.computed - (r.prompt_tokens - r.shared)) for r in judged),
        requests=len(run.requests),
        refused=run.refused,
        meanReplicas=round(gpu / until, 2) if until else 0.0,
        peakReplicas=max(targets),
        ttftP50=round(_quantile(first, 0.5), 3),
        ttftP99=round(_quantile(first, 0.99), 3),
        tpotP99=round(_quantile(sorted(r.token_seconds for r in judged), 0.99), 4),
        changes=len(targets) - 1,
    )


def reversals(targets: Sequence[int]) -> int:
    """Count the changes of direction."""
    signs = [after > before for before, after in itertools.pairwise(targets) if after != before]
    return sum(one != other for one, other in itertools.pairwise(signs))


def pending_excess(supply: Sequence[tuple[float, int, int]], needed: Sequence[tuple[float, int]]) -> int:
    """Return the most engines starting beyond need; without `needed`, most starting."""
    worst, upcoming, need = 0, list(needed), 0
    for at, ready, starting in supply:
        while upcoming and upcoming[0][0] <= at:
            need = upcoming.pop(0)[1]
        worst = max(worst, min(starting, ready + starting - need))
    return worst


def recovery(requests: Sequence[Request], attained: Sequence[bool]) -> float:
    """Return the longest run of `BIN`s below the goal, in seconds; empty bins belong to the one before."""
    bins: dict[int, list[bool]] = {}
    for request, well in zip(requests, attained, strict=True):
        bins.setdefault(int(request.arrived_at / BIN), []).append(well)
    longest, since = 0.0, None
    order = sorted(bins)
    for index, after in zip(order, [*order[1:], order[-1] + 1] if order else [], strict=True):
        if sum(bins[index]) < GOAL * len(bins[index]):
            since = index if since is None else since
            longest = max(longest, (after - since) * BIN)
        else:
            since = None
    return longest


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
