"""Parses the Prometheus text of an engine or a gateway into its report. Pure; skips other series."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from mamba_api.choices import Role
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.fleet_view import EngineReport, GatewayReport

_E = "mambaserve_"
_G = "mambaserve_gateway_"
_ENGINE = frozenset(
    _E + name
    for name in (
        "requests_running", "requests_waiting", "max_running_requests", "state_usage", "kv_usage",
        "arena_usage", "slabs", "transfer_credits", "request_duration_seconds_bucket",
        "prompt_tokens_waiting", "prefill_tokens_per_second", "decode_step_seconds", "prompt_tokens_total",
        "cached_tokens_total", "generated_tokens_total", "request_prompt_tokens_count",
        "time_to_first_token_seconds_bucket", "time_per_output_token_seconds_bucket",
    )
)  # fmt: skip
_HOLDING = frozenset(_E + name for name in ("requests_running", "requests_waiting", "checkpoints"))
_GATEWAY = frozenset(
    _G + name for name in ("requests_total", "in_flight", "queued", "held", "model_in_flight", "model_queued")
)
Sample = tuple[Mapping[str, str], float]


class ReportInvalid(ValueError):
    """A text that does not come from an engine or a gateway of this product."""


@dataclass(frozen=True, slots=True)
class DeletionCost:
    """Says what would be lost by the end of one engine: its checkpoints and requests."""

    checkpoints: float
    """Checkpoints in the cache of the engine."""
    requests: float
    """Requests that run or wait."""


def deletion_cost(text: str) -> DeletionCost:
    """Return the deletion cost of an engine. Raises ReportInvalid."""
    totals = {name: sum(value for _, value in samples) for name, samples in series(text, _HOLDING).items()}
    running = totals.get(_E + "requests_running")
    if running is None:
        raise ReportInvalid("the report has no mambaserve_requests_running")
    return DeletionCost(
        totals.get(_E + "checkpoints", 0.0), running + totals.get(_E + "requests_waiting", 0.0)
    )


def engine_report(text: str, config: AutoscalerConfig, role: Role = "unified") -> EngineReport:
    """Return the report of an engine of `role`. Raises ReportInvalid.

    `config` has the targets by which late answers are counted. A prefill engine writes no token: its answer
    to a request is the state of the prompt.
    """
    series_by_name = series(text, _ENGINE)
    if _E + "requests_running" not in series_by_name:
        raise ReportInvalid("the report has no mambaserve_requests_running")

    def total(name: str) -> float:
        return sum(value for _, value in series_by_name.get(_E + name, ()))

    states = total("state_usage") + _moving_share(series_by_name.get(_E + "slabs", []))
    pages, arena = total("kv_usage"), total("arena_usage")
    first = "request_duration_seconds" if role == "prefill" else "time_to_first_token_seconds"
    firsts, late = _late(series_by_name.get(f"{_E}{first}_bucket", []), config.ttft_target)
    ended, slow = _late(
        series_by_name.get(_E + "time_per_output_token_seconds_bucket", []), config.tpot_target
    )
    return EngineReport(
        running=int(total("requests_running")),
        waiting=int(total("requests_waiting")),
        places=int(total("max_running_requests")),
        # Slots and pages share one arena: its use counts for the one of the two that uses more.
        slots_used=max(states, arena) if states > pages else states,
        pages_used=pages if states > pages else max(pages, arena),
        credits=int(total("transfer_credits")),
        waiting_tokens=total("prompt_tokens_waiting"),
        prefill_speed=total("prefill_tokens_per_second"),
        decode_step=total("decode_step_seconds"),
        arrivals_total=total("request_prompt_tokens_count"),
        prompt_tokens_total=total("prompt_tokens_total"),
        cached_tokens_total=total("cached_tokens_total"),
        output_tokens_total=total("generated_tokens_total"),
        first_tokens_total=firsts,
        first_tokens_late_total=late,
        finished_total=ended,
        finished_slow_total=slow,
    )


def _moving_share(slabs: list[Sample]) -> float:
    """Return the share of the arena, 0 to 1, with states that arrive or that wait for their readers."""
    owners = {labels.get("owner"): value for labels, value in slabs}
    moving = owners.get("receiving", 0.0) + owners.get("exported", 0.0)
    return moving / max(sum(owners.values()), 1.0)


def gateway_report(text: str, models: frozenset[str] | None = None) -> GatewayReport:
    """Return the report of a gateway. Raises ReportInvalid.

    `models` are the names of the models whose requests count, at a gateway of several models; None = all.
    """
    series_by_name = series(text, _GATEWAY)
    if _G + "in_flight" not in series_by_name:
        raise ReportInvalid("the report has no mambaserve_gateway_in_flight")

    def total(name: str) -> float:
        samples = series_by_name.get(_G + name, ())
        return sum(
            value
            for labels, value in samples
            if (models is None or labels.get("model") in models)
            and (name != "requests_total" or _is_work(labels))
        )

    arrived = total("requests_total")
    if models is not None:
        # Requests that wait for an engine are among those that wait for a place.
        return GatewayReport(
            in_flight=int(total("model_in_flight")), queued=int(total("model_queued")), arrivals_total=arrived
        )
    return GatewayReport(
        in_flight=int(total("in_flight")), queued=int(total("queued")), held=int(total("held")),
        arrivals_total=arrived,
    )  # fmt: skip


def _is_work(labels: Mapping[str, str]) -> bool:
    """Return whether requests with these labels are work for engines, as refused and invalid ones are not."""
    code = labels.get("code", "")
    if labels.get("reason") == "key_limit":
        return False
    return not code.startswith("4") or code == "429"


def series(text: str, series_names: frozenset[str]) -> dict[str, list[Sample]]:
    """Return the samples (labels, value) of the named series, by name. Raises ReportInvalid."""
    series_by_name: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(_lines(text, series_names)) + "\n"):
            for sample in family.samples:
                series_by_name.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as error:
        raise ReportInvalid(f"not Prometheus text: {error}") from error
    return series_by_name


def _lines(text: str, series_names: frozenset[str]) -> Iterator[str]:
    for line in text.splitlines():
        ends = (line.find("{"), line.find(" "), len(line))
        name = line[: min(end for end in ends if end >= 0)]
        if name in series_names:
            yield line


def _late(buckets: list[Sample], target: float | None) -> tuple[float, float]:
    """Return how many durations a histogram counts, and how many of them are above `target`, in seconds.

    Inside a bucket, the durations are taken as evenly spread. Without a target, none is above it.
    """
    edges: dict[float, float] = {}
    for labels, value in buckets:
        edge = float(labels.get("le", "inf"))
        edges[edge] = edges.get(edge, 0.0) + value
    if not edges:
        return 0.0, 0.0
    total = edges[max(edges)]
    if target is None:
        return total, 0.0
    below, count = 0.0, 0.0
    for edge, value in sorted(edges.items()):
        if edge >= target:
            inside = (target - below) / (edge - below) if edge != float("inf") else 0.0
            return total, total - (count + inside * (value - count))
        below, count = edge, value
    return total, 0.0
