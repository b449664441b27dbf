"""Whatever the API accepts, the processes in the pods accept too, and they are told the very same numbers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_api import names
from mamba_api.quantity import Duration, Quantity
from mamba_edge.usage.prices import Prices
from mamba_gateway.key_limits import KeyLimits
from mamba_gateway.settings import GatewaySettings
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import number
from mamba_settings.engine_settings import EngineSettings
from operator_objects import owner, planned


def told(container: Manifest) -> dict[str, Any]:
    """Return the settings of a container, by command line and environment."""
    found: dict[str, Any] = {
        one["name"].removeprefix(names.ENV_PREFIX).lower(): one["value"]
        for one in container["env"]
        if "value" in one and one["name"].startswith(names.ENV_PREFIX)
    }
    words = container["args"][1:]
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        found[name] = words.pop(0)
    return found


def engine_told(container: Manifest, volumes: list[Manifest], config_map: Manifest) -> dict[str, Any]:
    """Return the same for an engine, with the settings file that its pod mounts."""
    given_ = told(container)
    folder, _, file = given_.pop("config").rpartition("/")
    [mount] = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == folder]
    [volume] = [one for one in volumes if one["name"] == mount]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    return {**json.loads(config_map["data"][file]), **given_}


def processes(**spec: Any) -> tuple[EngineSettings, GatewaySettings]:
    """Return both processes' settings, read as they read them."""
    made = {
        (one.manifest["kind"], one.manifest["metadata"]["name"]): one.manifest
        for one in planned(owner(**spec)).applies
    }

    def pod(name: str) -> Manifest:
        found: Manifest = made["Deployment", name]["spec"]["template"]["spec"]
        return found

    engine = pod("nano-engine")
    document = engine_told(engine["containers"][0], engine["volumes"], made["ConfigMap", "nano-engine"])
    return EngineSettings(**document), GatewaySettings(**told(pod("nano")["containers"][0]))


DURATIONS = st.sampled_from(["1ms", "0.001ms", "1s", "1234567s", "1.5h", "33333.333s", "999999h"])
SIZES = st.sampled_from(["1n", "1m", "1", "4096", "1.5Mi", "16Mi", "123456789123", "9Ei"])
SHARES = st.floats(1e-6, 1.0)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_gateway_is_told_the_limits_of_the_spec(data: st.DataObject) -> None:
    limits = data.draw(
        st.fixed_dictionaries(
            {"queueTimeout": DURATIONS, "requestTimeout": DURATIONS, "maxBodySize": SIZES},
            optional={"maxInFlight": st.integers(1, 10**6), "maxQueued": st.integers(0, 10**6)},
        )
    )
    drain = data.draw(DURATIONS | st.just("0s"))
    weights = {"prefixWeight": data.draw(st.floats(0, 100)), "loadWeight": data.draw(st.floats(0, 100))}

    engine, made = processes(
        gateway={"limits": limits, "routing": weights}, rollout={"drainTimeout": drain}
    )  # fmt: skip

    assert [made.prefix_weight, made.load_weight] == list(weights.values())

    assert made.queue_timeout == made.hold_timeout == Duration(limits["queueTimeout"]).seconds
    assert made.request_timeout == Duration(limits["requestTimeout"]).seconds
    assert made.max_body_bytes == Quantity(limits["maxBodySize"]).bytes
    assert engine.max_body_bytes >= made.max_body_bytes
    assert made.drain_timeout == Duration(drain).seconds
    assert made.drain_quiet == engine.drain_quiet > 0
    assert (made.max_in_flight, made.max_queue) == (
        limits.get("maxInFlight", 1024), limits.get("maxQueued", 256),
    )  # fmt: skip
    assert made.connections > made.max_in_flight + made.max_queue


def test_the_gateway_is_told_the_limits_of_keys() -> None:
    each = {"requestsPerMinute": 60, "tokensPerMinute": 9000, "concurrentRequests": 4}
    keys = [{"name": "batch", "weight": 2, "tokensPerMinute": 5}, {"name": "chat.1", **each}]
    auth = {"secretRef": {"name": "keys"}}
    _, made = processes(gateway={"auth": auth, "limits": {"perKey": each, "keys": keys}})
    assert made.key_limits.limits_of("anyone-else") == KeyLimits(60, 9000, 4)
    assert made.key_limits.limits_of("batch") == KeyLimits(60, 5, 4, weight=2)
    assert made.key_limits.limits_of("chat.1") == KeyLimits(60, 9000, 4)
    _, made = processes()
    assert not made.key_limits.limited


def test_the_gateway_is_told_the_days_the_readers_and_the_prices_of_its_ledger() -> None:
    auth = {"secretRef": {"name": "keys"}}
    prices = {
        "currency": "EUR",
        "deviceHour": 2.5,
        "promptTokens": 0.1,
        "resumedTokens": 1e-7,
        "outputTokens": 0,
    }
    usage = {"retentionDays": 400, "readers": ["finance", "ops.1"], "prices": prices}
    _, made = processes(gateway={"auth": auth, "usage": usage})
    assert (made.usage_days, made.usage_reader) == (400, ("finance", "ops.1"))
    assert made.prices == Prices("EUR", 2.5, 0.1, 1e-7, 0.0)
    _, made = processes()
    assert (made.usage_days, made.usage_reader, made.prices) == (90, (), Prices())


@pytest.mark.parametrize("origins", [[], ["*"], ["https://a.example.org", "http://localhost:3000"]])
def test_the_gateway_is_told_whose_pages_may_call(origins: list[str]) -> None:
    _, made = processes(gateway={"corsOrigins": origins})
    assert made.cors_origin == tuple(origins)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_engine_is_told_the_budget_and_the_cache_of_the_spec(data: st.DataObject) -> None:
    page = data.draw(st.sampled_from([1, 16, 1024]))
    cache = {
        "strategy": data.draw(st.sampled_from(["Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"])),
        "stateDtype": data.draw(st.sampled_from(["Auto", "float32", "float16"])),
        "trackInterval": page * data.draw(st.integers(1, 64)),
        "eviction": data.draw(st.sampled_from(["RecomputeCost", "LRU"])),
        "maxCheckpointsPerPath": data.draw(st.integers(1, 1024)),
        "prefixCaching": data.draw(st.booleans()),
    }
    engine = {
        "pageSize": page,
        "dtype": data.draw(st.sampled_from(["Auto", "float32", "bfloat16", "float16"])),
        "chunkedPrefillTokens": data.draw(st.integers(1, 1_048_576)),
        "overlapSchedule": data.draw(st.booleans()),
        "batchInvariant": data.draw(st.booleans()),
    }
    memory = {"utilization": data.draw(SHARES), "deviceMemory": data.draw(SIZES)}

    # Without the model's configuration the user's words reach the engine, not the planner's choice.
    made, _ = processes(
        model={"uri": "hf://org/model"}, stateCache=cache, engine=engine, memory=memory, resources={"gpus": 1}
    )

    assert made.utilization == memory["utilization"]
    assert made.device_memory == Quantity(memory["deviceMemory"]).bytes
    assert (made.page_size, made.track_interval) == (page, cache["trackInterval"])
    assert (made.prefix_caching, made.max_checkpoints_per_path) == (
        cache["prefixCaching"], cache["maxCheckpointsPerPath"],
    )  # fmt: skip
    assert (made.overlap, made.batch_invariant) == (engine["overlapSchedule"], engine["batchInvariant"])
    assert made.chunked_prefill_tokens == engine["chunkedPrefillTokens"]
    assert made.strategy == cache["strategy"]
    assert made.state_dtype.lower() == str(cache["stateDtype"]).lower()


@pytest.mark.parametrize(
    ("spec", "setting", "wanted"),
    [
        ({"model": {"uri": "hf://a/b", "maxModelLen": 777}}, "max_model_len", 777),
        ({"engine": {"dtype": "bfloat16"}}, "dtype", "bfloat16"),
        ({"engine": {"quantization": "int8"}, "resources": {"gpus": 0}}, "quantization", "int8"),
        ({"engine": {"quantization": "int4"}, "resources": {"gpus": 0}}, "quantization", "int4"),
        ({"engine": {"kvCacheDtype": "fp8_e4m3"}}, "kv_cache_dtype", "fp8_e4m3"),
        ({"engine": {"maxRunningRequests": 9}}, "max_running_requests", 9),
        ({"engine": {"stepTime": "80ms"}}, "step_time", 0.08),
        ({"engine": {"decodeGraphs": "Off"}}, "decode_graphs", "off"),
        ({"engine": {"speculation": "Ngram"}}, "speculation", "ngram"),
        ({"engine": {"speculation": "draft=hf://a/B"}}, "speculation", "draft=hf://a/B"),
        ({"engine": {"speculativeTokens": 3}}, "speculative_tokens", 3),
        ({"memory": {"arena": "3Gi"}}, "arena_bytes", 3 << 30),
    ],
    ids=[
        "model.maxModelLen",
        "engine.dtype",
        "engine.quantization",
        "engine.quantization int4",
        "engine.kvCacheDtype",
        "engine.maxRunningRequests",
        "engine.stepTime",
        "engine.decodeGraphs",
        "engine.speculation",
        "a draft model",
        "engine.speculativeTokens",
        "memory.arena",
    ],
)
def test_a_field_of_the_spec_reaches_the_engine(spec: dict[str, Any], setting: str, wanted: Any) -> None:
    made, _ = processes(**spec)

    assert getattr(made, setting) == wanted


@pytest.mark.parametrize(
    "uri",
    ["hf://org/model", "hf://org/model@v1", "pvc://claim/a/b", "file:///srv/m", "builtin://tiny-recall"],
)
def test_the_engine_is_told_the_models_address_to_the_letter(uri: str) -> None:
    made, _ = processes(model={"uri": uri, "servedName": "--not an option"})

    assert (made.model, made.served_model_name) == (uri, "--not an option")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(value: float) -> None:
    assert float(number(value)) == value


@pytest.mark.parametrize(
    ("value", "text"), [(300.0, "300"), (0.9, "0.9"), (0.0, "0"), (1e-7, "1e-07"), (5, "5")]
)
def test_a_number_is_written_as_people_write_it(value: float, text: str) -> None:
    assert number(value) == text
