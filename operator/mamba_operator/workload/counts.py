"""`EngineCounts`: what one engine has counted of its traffic since it started. Pure."""

from dataclasses import dataclass

from mamba_operator.autoscale.reports import ReportInvalid, series

_E = "mambaserve_"
_WANTED = frozenset(
    _E + name
    for name in (
        "requests_running", "requests_waiting", "request_prompt_tokens_sum", "request_prompt_tokens_count",
        "request_generated_tokens_sum", "request_generated_tokens_count",
        "admitted_prompt_tokens_total", "shared_prompt_tokens_total",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Counters since the start of the engine, but for `present`."""

    prompts: float
    """Requests that came."""
    prompt_tokens: float
    """Of them."""
    answers: float
    """Sequences that ended."""
    output_tokens: float
    """Of them."""
    present: float
    """Sequences that run or wait just now."""
    admitted_tokens: float | None = None
    """Prompt tokens of sequences that began; None: the engine does not know what came by before."""
    shared_tokens: float | None = None
    """Of them, those that came by before; None with it."""


def engine_counts(text: str) -> EngineCounts:
    """From the Prometheus text of an engine. Raises ReportInvalid."""
    found = {name: sum(value for _, value in samples) for name, samples in series(text, _WANTED).items()}

    def one(name: str) -> float:
        try:
            return found[_E + name]
        except KeyError:
            raise ReportInvalid(f"no {_E}{name} in it") from None

    admitted = found.get(_E + "admitted_prompt_tokens_total")
    shared = found.get(_E + "shared_prompt_tokens_total")
    known = admitted is not None and shared is not None
    return EngineCounts(
        prompts=one("request_prompt_tokens_count"),
        prompt_tokens=one("request_prompt_tokens_sum"),
        answers=one("request_generated_tokens_count"),
        output_tokens=one("request_generated_tokens_sum"),
        present=one("requests_running") + one("requests_waiting"),
        admitted_tokens=admitted if known else None,
        shared_tokens=shared if known else None,
    )
