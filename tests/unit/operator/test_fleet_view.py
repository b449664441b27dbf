"""Parts of an observation: rates of counters, restarts of engines, silence of engines and gateways."""

import msgspec
import pytest

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.fleet_view import EngineReport, FleetView, GatewayReport
from mamba_operator.autoscale.observation import Observation
from mamba_operator.autoscale.reports import ReportInvalid, engine_report, gateway_report

DOOR = {"door": GatewayReport()}
ENGINE_TEXT = """# HELP mambaserve_requests_running Sequences in the running batch.
# TYPE mambaserve_requests_running gauge
mambaserve_requests_running{model="m"} 3.0
mambaserve_requests_running_other{model="m"} 99
mambaserve_requests_waiting{model="m"} 2.0
mambaserve_max_running_requests{model="m"} 16
mambaserve_state_usage{model="m"} 0.5
mambaserve_kv_usage{model="m"} 0.25
mambaserve_arena_usage{model="m"} 0.75
mambaserve_prompt_tokens_waiting{model="m"} 4000
mambaserve_prefill_tokens_per_second{model="m"} 9000
mambaserve_decode_step_seconds{model="m"} 0.02
mambaserve_prompt_tokens_total{model="m"} 1e6
mambaserve_cached_tokens_total{model="m"} 25e4
mambaserve_generated_tokens_total{model="m"} 5000
mambaserve_request_prompt_tokens_count{model="m"} 500
mambaserve_time_to_first_token_seconds_bucket{le="1.0",model="m"} 300
mambaserve_time_to_first_token_seconds_bucket{le="2.0",model="m"} 400
mambaserve_time_to_first_token_seconds_bucket{le="+Inf",model="m"} 480
mambaserve_time_per_output_token_seconds_bucket{le="0.05",model="m"} 470
mambaserve_time_per_output_token_seconds_bucket{le="+Inf",model="m"} 470
"""
GATEWAY_TEXT = """mambaserve_gateway_in_flight 4.0
mambaserve_gateway_queued 2.0
mambaserve_gateway_held 1.0
mambaserve_gateway_requests_total{code="200",model="m",route="/v1/chat/completions"} 90
mambaserve_gateway_requests_total{code="429",model="m",route="/v1/chat/completions"} 5
mambaserve_gateway_requests_total{code="429",model="m",reason="key_limit",route="/v1/chat/completions"} 700
mambaserve_gateway_requests_total{code="401",model="unknown",route="/v1/chat/completions"} 1000
"""


def look(view: FleetView, at: float, **engines: EngineReport | None) -> Observation:
    return view.observe(at, desired=2, ready=engines, gateways=DOOR)


def test_rates_are_what_counters_did_between_two_looks() -> None:
    view = FleetView()
    first = EngineReport(
        arrivals_total=5, prompt_tokens_total=1000, output_tokens_total=50, waiting=1, waiting_tokens=9000
    )
    assert look(view, 0, a=first).load == msgspec.structs.replace(
        look(FleetView(), 0, a=first).load, arrivals=0.0
    )

    second = msgspec.structs.replace(
        first, arrivals_total=25, prompt_tokens_total=9000, output_tokens_total=150, waiting=2
    )
    load = look(view, 10, a=second).load

    assert load is not None
    assert (load.arrivals, load.prompt_rate, load.output_rate) == (2.0, 800.0, 10.0)
    assert (load.saturated, load.saturated_prompt_rate) == (1, 800.0)


@pytest.mark.parametrize(("waited", "saturated"), [(2000, 0), (7999, 0), (8000, 1), (50_000, 1)])
def test_an_engine_surely_never_lacked_prompts_if_those_that_waited_at_first_took_all_the_time(
    waited: int, saturated: int
) -> None:
    """Compute 8,000 tokens in each case.

    That some wait at both looks says nothing: prompts come by chance.
    """
    view = FleetView()
    look(view, 0, a=EngineReport(prompt_tokens_total=1000, waiting=1, waiting_tokens=waited))

    load = look(view, 10, a=EngineReport(prompt_tokens_total=9000, waiting=1, waiting_tokens=waited)).load

    assert load is not None
    assert load.saturated == saturated


def test_an_engine_that_started_anew_counts_from_zero() -> None:
    view = FleetView()
    look(view, 0, a=EngineReport(arrivals_total=1000, prompt_tokens_total=1e6))

    load = look(view, 10, a=EngineReport(arrivals_total=20, prompt_tokens_total=4000)).load

    assert load is not None
    assert (load.arrivals, load.prompt_rate) == (2.0, 400.0)


def test_an_engine_that_is_new_or_was_silent_gives_no_rate() -> None:
    view = FleetView()
    look(view, 0, a=EngineReport(arrivals_total=1000), b=EngineReport(arrivals_total=10))
    look(view, 10, a=None, b=EngineReport(arrivals_total=10))

    both = {"a": EngineReport(arrivals_total=9000), "b": EngineReport(arrivals_total=30)}
    load = look(view, 20, **both, c=EngineReport(arrivals_total=500)).load

    assert load is not None
    assert (load.engines, load.arrivals) == (3, 2.0)


@pytest.mark.parametrize("passed", [0.0, -5.0])
def test_a_clock_that_stands_or_goes_back_gives_no_rate(passed: float) -> None:
    view = FleetView()
    look(view, 100, a=EngineReport(arrivals_total=1))

    load = look(view, 100 + passed, a=EngineReport(arrivals_total=9)).load

    assert load is not None
    assert load.arrivals == 0


def test_who_is_silent_is_missing_and_not_idle() -> None:
    view = FleetView()

    assert look(view, 0, a=None, b=None).load is None
    assert view.observe(1, desired=1, ready={}, gateways={}).traffic is None
    assert view.observe(1, desired=1, ready={}, gateways={**DOOR, "other": None}).traffic is None
    assert view.observe(2, desired=1, ready={}, gateways=DOOR).traffic is not None


def test_an_engine_is_read_from_its_metrics() -> None:
    report = engine_report(ENGINE_TEXT, AutoscalerConfig(ttft_target=1.5, tpot_target=0.1))

    assert report == EngineReport(
        running=3, waiting=2, places=16, slots_used=0.75, pages_used=0.25, waiting_tokens=4000,
        prefill_speed=9000, decode_step=0.02, arrivals_total=500, prompt_tokens_total=1e6,
        cached_tokens_total=250_000, output_tokens_total=5000, first_tokens_total=480,
        first_tokens_late_total=130, finished_total=470, finished_slow_total=0,
    )  # fmt: skip


def test_a_gateway_is_read_from_its_metrics_and_who_has_no_key_is_no_request() -> None:
    assert gateway_report(GATEWAY_TEXT) == GatewayReport(in_flight=4, queued=2, held=1, arrivals_total=95)


@pytest.mark.parametrize("text", ["", "<html>", "mambaserve_requests_running{ 3", "up 1"])
def test_what_is_no_report_is_said(text: str) -> None:
    with pytest.raises(ReportInvalid):
        engine_report(text, AutoscalerConfig())
    with pytest.raises(ReportInvalid):
        gateway_report(text)


def test_what_engines_and_gateways_are_asked_for_is_what_they_tell() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
    from mamba_operator.autoscale import reports
    from mamba_server.api.metrics.engine_metrics import HELP
    from mamba_server.api.metrics.request_metrics import RequestMetrics

    registry = CollectorRegistry()
    RequestMetrics(registry, "m").submitted(7)
    told = {line.split("{")[0] for line in generate_latest(registry).decode().splitlines()}
    told |= {f"mambaserve_{name}" for name in HELP}
    assert told >= reports._ENGINE

    gateway = GatewayMetrics(lambda: ())
    gateway.request("/v1/completions", "m", "200", "").inc()
    assert gateway_report(gateway.render().decode()).arrivals_total == 1
