"""Choosing among candidates, with a reason in words for the one taken and for each one left. Pure."""

from mamba_planner.candidates import Candidate
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.memory_plan import RejectedCandidate
from mamba_planner.strategy import MOST_ROBUST_FIRST, reservation

_MODEL = " by a byte-count model, not measured"
JUST_FITS = "it just fits: a longer sequence would make others wait"
TIE = 0.01
"""Scores closer than this are a tie: robustness decides, unless memory just reaches. Beside the engine's own
scheduler and cache the estimate orders strategies better than that (`benchmarks.planner`)."""


def choose(
    candidates: list[Candidate], constraints: Constraints, workload: Workload, hint: str | None
) -> Candidate:
    """Pick from candidates of which at least one fits.

    Precision comes first: 16-bit states only where they are asked for, or where 32-bit ones miss the
    declared concurrency or do not fit, and never against the checkpoint's own `hint` while 32-bit ones fit.
    Then the declared concurrency, then the expected throughput; within a tie the most robust strategy.
    """
    pool = [each for each in candidates if not each.misfit]
    exact = [each for each in pool if each.state_dtype == "float32"]
    if hint == "float32" and exact:
        pool = exact
    wanted = workload.concurrency or 1
    pool = [each for each in pool if each.running >= wanted] or pool
    if enough := enough_in_full_precision(pool, workload):
        pool = enough
    best = max(each.score for each in pool)
    robust = _most_robust_first(constraints)
    tied = [
        each for each in pool if each.score == best or (each.score >= best * (1 - TIE) and _has_room(each))
    ]
    return min(tied, key=lambda each: (robust.index(each.strategy), each.state_dtype != "float32"))


def enough_in_full_precision(candidates: list[Candidate], workload: Workload) -> list[Candidate]:
    """Those with 32-bit states that meet the declared concurrency: where there are any, one is chosen."""
    wanted = workload.concurrency or 1
    return [each for each in candidates if each.state_dtype == "float32" and each.running >= wanted]


def _has_room(each: Candidate) -> bool:
    """For more than the planned sequences: where mean lengths just fit, longer ones make others wait."""
    return each.fits > each.planned


def reject(
    candidates: list[Candidate],
    chosen: Candidate,
    constraints: Constraints,
    workload: Workload,
    hint: str | None,
) -> tuple[RejectedCandidate, ...]:
    """Every candidate but the chosen one, with why not."""
    return tuple(
        RejectedCandidate(
            each.strategy, each.state_dtype, _why_not(each, chosen, constraints, workload, hint)
        )
        for each in candidates
        if each is not chosen
    )


def _most_robust_first(constraints: Constraints) -> list[str]:
    # Without prefix caching nobody reads a checkpoint, so the fewest moving parts are the most robust.
    return list(MOST_ROBUST_FIRST) if constraints.prefix_caching else list(reversed(MOST_ROBUST_FIRST))


def why(chosen: Candidate, candidates: list[Candidate], constraints: Constraints, workload: Workload) -> str:
    """The reason for the choice, in words, with numbers."""
    fitting = [each for each in candidates if not each.misfit]
    each_slots = f"{chosen.slots_each} slot{'s' if chosen.slots_each > 1 else ''} each"
    words = [f"up to {chosen.running} sequences of {chosen.workload.tokens} tokens at once, {each_slots}"]
    if (wanted := workload.concurrency) is not None:
        words.append(
            f"meets the {workload.origin} concurrency of {wanted}"
            if chosen.running >= wanted
            else f"falls short of the {workload.origin} concurrency of {wanted}, as does every other choice"
            if not any(each.running >= wanted for each in fitting)
            else f"falls short of the {workload.origin} concurrency of {wanted}"
        )
    if constraints.prefix_caching and chosen.checkpoints:
        words.append(
            f"with {chosen.planned} running there is room for {chosen.checkpoints} reusable checkpoints, "
            f"and an estimated {chosen.saved:.0%} of prompt tokens is resumed"
        )
    elif constraints.prefix_caching:
        words.append(_without_room(chosen))
    else:
        words.append("prefix caching is off, so no slot is spent on checkpoints")
    if constraints.strategy is not None:
        words.append(f"strategy {chosen.strategy} is what the configuration asks for")
    elif any(each.score > chosen.score for each in fitting if each.state_dtype == chosen.state_dtype):
        words.append("ties with a faster estimate and is more robust")
    if constraints.state_dtype is None and chosen.state_dtype == "float16":
        words.append("float32 states would not be enough here")
    return "; ".join(words)


def _without_room(chosen: Candidate) -> str:
    """Why a choice that resumes nothing is made all the same, and what would be given up for the cache."""
    said = (
        f"with {chosen.planned} running there is no room for reusable checkpoints and nothing is resumed; "
        "while fewer run, what they leave holds checkpoints"
    )
    half = chosen.half
    if half is None or not half.cached_paths or not chosen.score:
        return said
    change = half.score / chosen.score - 1
    return (
        f"{said}; {half.running} at once would leave {half.checkpoints} and resume an estimated "
        f"{half.saved:.0%} of prompt tokens, at {change:+.0%} tokens per second{_MODEL}: maxRunningRequests "
        f"{half.running} keeps that room"
    )


def _why_not(
    each: Candidate, chosen: Candidate, constraints: Constraints, workload: Workload, hint: str | None
) -> str:
    wanted = workload.concurrency or 1
    if each.misfit:
        return each.misfit
    if constraints.strategy not in (None, each.strategy):
        return f"the configuration asks for strategy {constraints.strategy}; would run {each.running} at once"
    if constraints.state_dtype not in (None, each.state_dtype):
        return (
            f"the configuration asks for {constraints.state_dtype} states; would run {each.running} at once"
        )
    gain = each.score / chosen.score - 1 if chosen.score else 0.0
    runs = f"would run {each.running} at once against {chosen.running}"
    if each.running < wanted <= chosen.running:
        return f"{runs}: below the {workload.origin} concurrency of {wanted}"
    if each.state_dtype == "float16" and chosen.state_dtype == "float32":
        if hint == "float32":
            return f"{runs}, but the checkpoint asks for float32 states"
        return (
            f"{runs}, {gain:+.0%} tokens per second{_MODEL}, but rounds the recurrent state to 16 bits "
            "where 32 are enough; set stateDtype float16 to take it"
        )
    saved = f"{each.saved:.0%} of prompt tokens resumed against {chosen.saved:.0%}"
    if each.score >= chosen.score * (1 - TIE):
        weakness = _weakness(each, constraints) if _has_room(each) else JUST_FITS
        return f"{runs}, {saved}: a tie at {gain:+.1%} tokens per second{_MODEL}, and {weakness}"
    return f"{runs}, {saved}: {gain:+.0%} tokens per second{_MODEL}"


def _weakness(each: Candidate, constraints: Constraints) -> str:
    if each.state_dtype == "float16":
        return "16-bit states round the recurrence"
    if not constraints.prefix_caching:
        return "prefix caching is off, so its tracking slots would do nothing"
    # The same with overlap and without.
    return reservation(each.strategy, overlap=True).weakness
