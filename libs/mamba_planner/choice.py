"""Chooses among candidates and gives a reason in words for the chosen one and for each rejected one. Pure."""

from mamba_planner.candidates import Candidate
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.memory_plan import RejectedCandidate
from mamba_planner.strategy import MOST_ROBUST_FIRST, reservation

_MODEL = " by a byte-count model, not measured"
JUST_FITS = "it only just fits: a longer sequence would make others wait"
TIE = 0.01
"""Relative difference below which two scores tie. Robustness then decides, unless memory only just suffices.
Compared with the engine's own scheduler and cache, the estimate orders strategies more precisely than that
(`benchmarks.planner`)."""


def choose(
    candidates: list[Candidate], constraints: Constraints, workload: Workload, hint: str | None
) -> Candidate:
    """Choose among candidates of which at least one fits.

    Precision comes first: 16-bit states are chosen only if the settings require them, or if 32-bit ones miss
    the declared concurrency or do not fit, and never against the checkpoint's own `hint` while 32-bit ones
    fit. Next come the declared concurrency and the expected throughput; within a tie the most robust strategy
    wins.
    """
    pool = [candidate for candidate in candidates if not candidate.misfit]
    exact = [candidate for candidate in pool if candidate.state_dtype == "float32"]
    if hint == "float32" and exact:
        pool = exact
    concurrency = workload.concurrency or 1
    pool = [candidate for candidate in pool if candidate.running >= concurrency] or pool
    if enough := enough_in_full_precision(pool, workload):
        pool = enough
    best = max(candidate.score for candidate in pool)
    strategies = _most_robust_first(constraints)
    tied = [
        candidate
        for candidate in pool
        if candidate.score == best or (candidate.score >= best * (1 - TIE) and _has_room(candidate))
    ]
    return min(tied, key=lambda tie: (strategies.index(tie.strategy), tie.state_dtype != "float32"))


def enough_in_full_precision(candidates: list[Candidate], workload: Workload) -> list[Candidate]:
    """Return the candidates with 32-bit states that meet the declared concurrency.

    If there are any, one of them is chosen.
    """
    concurrency = workload.concurrency or 1
    return [
        candidate
        for candidate in candidates
        if candidate.state_dtype == "float32" and candidate.running >= concurrency
    ]


def _has_room(candidate: Candidate) -> bool:
    """Return whether more sequences fit than are planned.

    Sequences are planned with mean lengths: without such room, a sequence that is longer makes others wait.
    """
    return candidate.fits > candidate.planned


def reject(
    candidates: list[Candidate],
    chosen: Candidate,
    constraints: Constraints,
    workload: Workload,
    hint: str | None,
) -> tuple[RejectedCandidate, ...]:
    """Return every candidate except the chosen one, with the reason against it."""
    return tuple(
        RejectedCandidate(
            other.strategy, other.state_dtype, _why_not(other, chosen, constraints, workload, hint)
        )
        for other in candidates
        if other is not chosen
    )


def _most_robust_first(constraints: Constraints) -> list[str]:
    # Without prefix caching no request reads a checkpoint, so the simplest strategy is the most robust.
    return list(MOST_ROBUST_FIRST) if constraints.prefix_caching else list(reversed(MOST_ROBUST_FIRST))


def why(chosen: Candidate, candidates: list[Candidate], constraints: Constraints, workload: Workload) -> str:
    """Return why `chosen` was chosen among `candidates`, in words, with numbers."""
    fitting = [candidate for candidate in candidates if not candidate.misfit]
    slots = f"{chosen.slots_each} slot{'s' if chosen.slots_each > 1 else ''} each"
    clauses = [f"up to {chosen.running} sequences of {chosen.workload.tokens} tokens at once, {slots}"]
    if workload.concurrency is not None:
        clauses.append(_concurrency_clause(chosen, fitting, workload.concurrency, workload.origin))
    if constraints.prefix_caching and chosen.checkpoints:
        clauses.append(
            f"with {chosen.planned} running there is room for {chosen.checkpoints} reusable checkpoints, "
            f"and an estimated {chosen.saved:.0%} of prompt tokens is resumed"
        )
    elif constraints.prefix_caching:
        clauses.append(_without_room(chosen))
    else:
        clauses.append("prefix caching is off, so no slot is spent on checkpoints")
    if constraints.strategy is not None:
        clauses.append(f"the configuration asks for strategy {chosen.strategy}")
    elif any(other.score > chosen.score for other in fitting if other.state_dtype == chosen.state_dtype):
        clauses.append("it ties with a faster estimate and is more robust")
    if constraints.state_dtype is None and chosen.state_dtype == "float16":
        clauses.append("float32 states would not suffice here")
    return "; ".join(clauses)


def _concurrency_clause(chosen: Candidate, fitting: list[Candidate], concurrency: int, origin: str) -> str:
    if chosen.running >= concurrency:
        return f"meets the {origin} concurrency of {concurrency}"
    short = f"falls short of the {origin} concurrency of {concurrency}"
    if any(candidate.running >= concurrency for candidate in fitting):
        return short
    return f"{short}, as does every other choice"


def _without_room(chosen: Candidate) -> str:
    """Explain why the best choice resumes nothing, and how much it would cost to have a cache."""
    text = (
        f"with {chosen.planned} running there is no room for reusable checkpoints and nothing is resumed; "
        "while fewer run, the memory they leave holds checkpoints"
    )
    half = chosen.half
    if half is None or not half.cached_paths or not chosen.score:
        return text
    change = half.score / chosen.score - 1
    return (
        f"{text}; {half.running} at once would leave room for {half.checkpoints} and resume an estimated "
        f"{half.saved:.0%} of prompt tokens, at {change:+.0%} tokens per second{_MODEL}: set "
        f"maxRunningRequests {half.running} to keep that room"
    )


def _why_not(
    other: Candidate, chosen: Candidate, constraints: Constraints, workload: Workload, hint: str | None
) -> str:
    concurrency = workload.concurrency or 1
    if other.misfit:
        return other.misfit
    if constraints.strategy not in (None, other.strategy):
        return (
            f"the configuration asks for strategy {constraints.strategy}; would run {other.running} at once"
        )
    if constraints.state_dtype not in (None, other.state_dtype):
        return (
            f"the configuration asks for {constraints.state_dtype} states; would run {other.running} at once"
        )
    gain = other.score / chosen.score - 1 if chosen.score else 0.0
    runs = f"would run {other.running} at once against {chosen.running}"
    if other.running < concurrency <= chosen.running:
        return f"{runs}: below the {workload.origin} concurrency of {concurrency}"
    if other.state_dtype == "float16" and chosen.state_dtype == "float32":
        if hint == "float32":
            return f"{runs}, but the checkpoint asks for float32 states"
        return (
            f"{runs}, {gain:+.0%} tokens per second{_MODEL}, but rounds the recurrent state to 16 bits "
            "where 32 bits fit; set stateDtype float16 to choose it"
        )
    saved = f"{other.saved:.0%} of prompt tokens resumed against {chosen.saved:.0%}"
    if other.score >= chosen.score * (1 - TIE):
        weakness = _weakness(other, constraints) if _has_room(other) else JUST_FITS
        return f"{runs}, {saved}: a tie at {gain:+.1%} tokens per second{_MODEL}, and {weakness}"
    return f"{runs}, {saved}: {gain:+.0%} tokens per second{_MODEL}"


def _weakness(candidate: Candidate, constraints: Constraints) -> str:
    if candidate.state_dtype == "float16":
        return "16-bit states round the recurrence"
    if not constraints.prefix_caching:
        return "prefix caching is off, so its tracking slots would be unused"
    # The weakness is the same with and without overlap.
    return reservation(candidate.strategy, overlap=True).weakness
