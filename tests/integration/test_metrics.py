"""`/metrics` of a running server: the names of the reference, the numbers of the requests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_api import ROOT, ApiProcess, serving
from eventually import wait_until
from tiny_model import write_model

TEXT = "/v1/completions"
Samples = dict[str, float]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny")) as running:
        wait_until(lambda: "mambaserve_steps_total" in samples(running), "the engine's numbers")
        yield running


def samples(api: ApiProcess) -> Samples:
    """Return every sample, by name and labels without the model."""
    found = {}
    for family in text_string_to_metric_families(api.call("GET", "/metrics").body.decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model", "model_name")}
            text = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            found[f"{sample.name}{{{text}}}" if text else sample.name] = sample.value
    return found


def test_tokens_and_latencies_are_those_of_the_requests(api: ApiProcess) -> None:
    before = samples(api)
    for _ in range(3):
        answer = api.call(
            "POST", TEXT, {"prompt": "one two three four", "max_tokens": 5, "cache_salt": "slow"}
        ).json
    after = samples(api)
    usage = answer["usage"]

    def grown(name: str) -> float:
        return after[name] - before[name]

    for prefix, generated in (("mambaserve_", "generated_tokens"), ("vllm:", "generation_tokens")):
        assert grown(f"{prefix}prompt_tokens_total") == 3 * usage["prompt_tokens"]
        assert grown(f"{prefix}{generated}_total") == 15
        assert grown(f"{prefix}time_to_first_token_seconds_count") == 3
        assert grown(f"{prefix}inter_token_latency_seconds_count") == 12
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert grown("mambaserve_cached_tokens_total") == 3 * cached == grown("vllm:prompt_tokens_cached_total")
    assert grown("mambaserve_time_per_output_token_seconds_count") == 3
    assert grown("mambaserve_request_duration_seconds_count") == 3
    assert grown("vllm:e2e_request_latency_seconds_count") == 3
    assert grown("mambaserve_requests_finished_total{reason=length}") == 3
    assert grown("vllm:request_success_total{finished_reason=length}") == 3


def test_answers_are_counted_by_route_and_status(api: ApiProcess) -> None:
    name = f"mambaserve_http_requests_total{{route={TEXT},status=200}}"
    before = samples(api).get(name, 0.0)
    assert api.call("POST", TEXT, {"prompt": "x", "max_tokens": 1}).status == 200
    wait_for(api, name, before + 1)


def wait_for(api: ApiProcess, name: str, value: float) -> None:
    """Wait for a value: counters follow the answer, and the engine's numbers come ten times a second."""
    wait_until(lambda: samples(api).get(name) == value, f"{name} of {value}")


def test_the_engines_numbers_are_passed_on(api: ApiProcess) -> None:
    wait_for(api, "mambaserve_requests_running", 0)
    found = samples(api)
    assert found["mambaserve_steps_total"] == 7
    assert found["mambaserve_preemptions_total"] == 2 == found["vllm:num_preemptions_total"]
    assert found["mambaserve_prefix_misses_total{cause=evicted}"] == 3
    assert found["mambaserve_slabs{owner=cached}"] == 3
    assert found["mambaserve_requests_waiting"] == 1 == found["vllm:num_requests_waiting"]
    assert found["mambaserve_requests_running"] == 0 == found["vllm:num_requests_running"]
    assert found["mambaserve_step_seconds_count{part=run}"] >= 1
    assert found["mambaserve_batch_size_count"] >= 1
    assert found["mambaserve_strategy_info{strategy=ExtraBufferLazy}"] == 1
    assert found["mambaserve_engine_up"] == 1


def test_cache_usage_is_that_of_what_binds(api: ApiProcess) -> None:
    found = samples(api)
    assert found["mambaserve_cache_usage"] == 0.75 == found["vllm:kv_cache_usage_perc"]


def test_the_cache_configuration_is_told_to_routers(api: ApiProcess) -> None:
    assert samples(api)["vllm:cache_config_info{block_size=16,num_gpu_blocks=64}"] == 1


def test_what_clients_make_up_is_no_label(api: ApiProcess) -> None:
    for number in range(20):
        api.call("GET", f"/made/up/{number}")
        api.call("GET", f"/v1/models/made-up-{number}")
    text = api.call("GET", "/metrics").body.decode()
    assert "made" not in text
    assert samples(api)["mambaserve_http_requests_total{route=other,status=404}"] >= 20


def test_the_reference_names_every_series_of_a_live_engine(api: ApiProcess) -> None:
    page = (Path(ROOT) / "docs" / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"^\| `((?:mambaserve_|vllm:)[a-z0-9_:]+)`", page, flags=re.MULTILINE))
    shown = {
        re.sub(r"_(total|bucket|sum|count)$", "", name.partition("{")[0])
        for name in samples(api)
        if name.startswith(("mambaserve_", "vllm:")) and not name.partition("{")[0].endswith("_created")
    }
    documented = {name.removesuffix("_total") for name in named}
    assert shown <= documented
