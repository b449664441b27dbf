"""`EngineCounts`: the traffic that one engine has counted since it started. Pure."""

from dataclasses import dataclass

from mamba_operator.autoscale.reports import ReportInvalid, series

_E = "mambaserve_"
_SERIES = frozenset(
    _E + name
    for name in (
        "requests_running", "requests_waiting", "request_prompt_tokens_sum", "request_prompt_tokens_count",
        "request_generated_tokens_sum", "request_generated_tokens_count",
        "admitted_prompt_tokens_total", "shared_prompt_tokens_total",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Counters of one engine since its start; `present` is the current value."""

    prompts: float
    """Requests that arrived."""
    prompt_tokens: float
    """Prompt tokens of requests that arrived."""
    answers: float
    """Sequences that ended."""
    output_tokens: float
    """Generated tokens of sequences that ended."""
    present: float
    """Sequences that run or wait now."""
    admitted_tokens: float | None = None
    """Prompt tokens of sequences that began; None = the engine does not track shared prefixes."""
    shared_tokens: float | None = None
    """Admitted prompt tokens that an earlier prompt also had; None with `admitted_tokens`."""


def engine_counts(text: str) -> EngineCounts:
    """Return the counts in the Prometheus text of an engine. Raises ReportInvalid."""
    totals = {name: sum(value for _, value in samples) for name, samples in series(text, _SERIES).items()}

    def total(name: str) -> float:
        try:
            return totals[_E + name]
        except KeyError:
            raise ReportInvalid(f"the report has no {_E}{name}") from None

    admitted = totals.get(_E + "admitted_prompt_tokens_total")
    shared = totals.get(_E + "shared_prompt_tokens_total")
    tracks_sharing = admitted is not None and shared is not None
    return EngineCounts(
        prompts=total("request_prompt_tokens_count"),
        prompt_tokens=total("request_prompt_tokens_sum"),
        answers=total("request_generated_tokens_count"),
        output_tokens=total("request_generated_tokens_sum"),
        present=total("requests_running") + total("requests_waiting"),
        admitted_tokens=admitted if tracks_sharing else None,
        shared_tokens=shared if tracks_sharing else None,
    )
