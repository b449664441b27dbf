"""From a spec to how the children are started: every field arrives, and the real commands take them."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli import main
from mamba_cli.errors import InvalidInput
from mamba_cli.local.cluster_only import not_in_local_mode
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.unit import Unit, behind_one_address, gateway_argv, local_engine, unit_of
from mamba_cli.settings_options import chosen_settings
from mamba_gateway.key_limits import ANYONE, KeyLimits
from mamba_gateway.models.models_file import ModelsFile, model_settings
from mamba_gateway.settings import GatewaySettings
from mamba_planner import Constraints, Device, MemoryPlan, Workload, plan, plan_engine
from mamba_planner.families import load_model_config
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import engine_settings

CONFIG = Path(__file__).parents[2] / "golden" / "configs" / "granite-4.0-h-350m.json"
GIB = 1 << 30


def deployment(**spec: Any) -> MambaDeployment:
    body = {"metadata": {"name": "one"}, "spec": {"model": {"uri": "file:///m"}, **spec}}
    return MambaDeployment.model_validate(body)


@pytest.fixture
def planned(tmp_path: Path) -> MemoryPlan:
    (tmp_path / "config.json").write_text(CONFIG.read_text())
    return plan(load_model_config(tmp_path), Constraints(arena_bytes=GIB), Device("cpu", 0))


def parsed(argv: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings that the real `mambaserve serve` or `gateway` would run with."""
    main._collect()
    group: Any = typer.main.get_command(main.app)
    return chosen_settings(group.commands[argv[0]].make_context(argv[0], list(argv[1:])), "model")


def unit_for(spec: MambaDeployment, planned: MemoryPlan, folder: Path, **more: Any) -> Unit:
    loaded = LoadedDeployment(folder / "mamba.yaml", spec)
    place = {"host": more.pop("host", "0.0.0.0"), "port": more.pop("port", 8000)}
    engine = local_engine(
        loaded, planned, directory=folder, **{"device": "cpu", "port": 5, "admin_port": 6, **more}
    )
    return unit_of(loaded, [engine], launcher=("run",), **place)


def settings_of(unit: Unit) -> EngineSettings:
    """Return the settings that the engine reads, once its file is written."""
    command = unit.commands()[unit.engines[0].name]
    assert command.file is not None
    command.file.write_text(command.document)
    assert command.argv[:2] == ("run", "serve")
    return EngineSettings(**parsed(command.argv[1:]))


def test_the_engine_gets_every_field_and_the_plan(planned: MemoryPlan, tmp_path: Path) -> None:
    spec = deployment(
        model={"uri": "file:///m", "servedName": "nice"},
        engine={
            "pageSize": 32,
            "chunkedPrefillTokens": 512,
            "overlapSchedule": False,
            "batchInvariant": True,
        },
        stateCache={
            "trackInterval": 64,
            "eviction": "LRU",
            "maxCheckpointsPerPath": 2,
            "prefixCaching": False,
        },
        rollout={"drainTimeout": "12s"},
    )
    settings = settings_of(unit_for(spec, planned, tmp_path))
    assert settings.served_model_name == "nice"
    assert (settings.strategy, settings.state_dtype) == (planned.strategy, planned.state_dtype)
    assert (settings.port, settings.admin_port, settings.host) == (5, 6, "127.0.0.1")
    assert (settings.page_size, settings.chunked_prefill_tokens, settings.track_interval) == (32, 512, 64)
    assert (settings.overlap, settings.prefix_caching, settings.batch_invariant) == (False, False, True)
    assert (settings.eviction, settings.max_checkpoints_per_path) == ("LRU", 2)
    assert settings.arena_bytes == planned.arena_bytes
    assert settings.max_running_requests is None, "the plan's number is advice, no limit"
    assert settings.max_model_len == planned.max_model_len
    assert settings.drain_timeout == 12


def test_what_the_engine_gets_it_plans_to_the_same_arena(planned: MemoryPlan, tmp_path: Path) -> None:
    settings = settings_of(unit_for(deployment(), planned, tmp_path))
    again = plan_engine(load_model_config(tmp_path), settings, Device("cpu", 8 * GIB, declared=False))
    assert (again.strategy, again.state_dtype) == (planned.strategy, planned.state_dtype)
    assert (again.arena_bytes, again.slabs) == (planned.arena_bytes, planned.slabs)
    assert again.max_running_requests == planned.max_running_requests


def test_on_a_gpu_the_engine_plans_with_what_the_device_has(planned: MemoryPlan, tmp_path: Path) -> None:
    spec = deployment(memory={"deviceMemory": "24Gi", "utilization": 0.8})
    settings = settings_of(unit_for(spec, planned, tmp_path, device="cuda"))
    assert (settings.arena_bytes, settings.utilization, settings.device_memory) == (None, 0.8, 24 * GIB)


def test_extra_arguments_have_the_last_word(planned: MemoryPlan, tmp_path: Path) -> None:
    spec = deployment(engine={"extraArgs": ["--seed", "7", "--page-size", "32"]})
    unit = unit_for(spec, planned, tmp_path)
    assert unit.commands()[unit.engines[0].name].argv[-2:] == ("--page-size", "32")
    settings = settings_of(unit)
    assert (settings.seed, settings.page_size) == (7, 32)


def test_gateway_accepts_its_arguments() -> None:
    argv = gateway_argv(deployment(), backends=["http://127.0.0.1:5"], host="127.0.0.1", port=9)
    options = parsed(tuple(argv))
    assert options["backend"] == ["http://127.0.0.1:5"] or options["backend"] == ("http://127.0.0.1:5",)
    assert options["port"] == 9


def test_the_gateway_here_has_the_limits_of_the_spec() -> None:
    limits = {
        "maxInFlight": 3, "maxQueued": 4, "queueTimeout": "5s", "requestTimeout": "6m", "maxBodySize": "7Mi",
    }  # fmt: skip
    argv = gateway_argv(
        deployment(gateway={"limits": limits, "routing": {"prefixWeight": 0.1234567, "loadWeight": 0}}),
        backends=["http://127.0.0.1:5"], host="127.0.0.1", port=9,
    )  # fmt: skip
    settings = GatewaySettings(**parsed(tuple(argv)))
    assert (settings.prefix_weight, settings.load_weight) == (0.1234567, 0)
    assert (settings.max_in_flight, settings.max_queue) == (3, 4)
    assert (settings.queue_timeout, settings.hold_timeout, settings.request_timeout) == (5, 5, 360)
    assert settings.max_body_bytes == 7 << 20
    unset = gateway_argv(deployment(), backends=["http://127.0.0.1:5"], host="127.0.0.1", port=9)
    default = GatewaySettings(backend=("http://127.0.0.1:5",), port=9)
    assert GatewaySettings(**parsed(tuple(unset))) == default


def test_the_gateway_here_limits_all_clients_together() -> None:
    each = {"requestsPerMinute": 60, "tokensPerMinute": 9000, "concurrentRequests": 4}
    keys = [{"name": "batch", "weight": 2}]
    auth = {"secretRef": {"name": "keys"}}
    spec = deployment(gateway={"auth": auth, "limits": {"perKey": each, "keys": keys}})
    argv = gateway_argv(spec, backends=["http://127.0.0.1:5"], host="127.0.0.1", port=9)
    assert GatewaySettings(**parsed(tuple(argv))).key_limits.limits_of(ANYONE) == KeyLimits(60, 9000, 4)
    assert any("gateway.limits.keys" in note for note in not_in_local_mode(spec.spec))


def test_the_gateway_here_lets_the_pages_of_the_spec_call() -> None:
    origins = ["https://a.example.org", "http://localhost:3000"]
    spec = deployment(gateway={"corsOrigins": origins})
    argv = gateway_argv(spec, backends=["http://127.0.0.1:5"], host="127.0.0.1", port=9)
    assert GatewaySettings(**parsed(tuple(argv))).cors_origin == tuple(origins)


def test_the_ledger_here_has_the_days_and_prices_of_the_spec_and_no_readers(
    planned: MemoryPlan, tmp_path: Path
) -> None:
    def unit(name: str, **usage: Any) -> Unit:
        gateway = {"auth": {"secretRef": {"name": "keys"}}, "usage": usage}
        spec = deployment(gateway=gateway, model={"uri": "file:///m", "servedName": name})
        return unit_for(
            spec.model_copy(update={"metadata": spec.metadata.model_copy(update={"name": name})}),
            planned,
            tmp_path,
        )

    def ledger(of: Unit) -> dict[str, str]:
        variables = of.commands()[of.gateway].environment
        start = "MAMBASERVE_"
        told = {name.removeprefix(start).lower(): value for name, value in variables.items()}
        return {
            name: told[name]
            for name in told
            if name.startswith(("usage_days", "usage_r", "price_", "model_p"))
        }

    prices = {"currency": "EUR", "deviceHour": 2.5}
    said = {"price_currency": "EUR", "price_device_hour": "2.5"}
    priced = unit("one", retentionDays=30, readers=["finance"], prices=prices)
    assert ledger(priced) == {"usage_days": "30", **said}
    place: dict[str, Any] = {"host": "127.0.0.1", "port": 1, "directory": tmp_path}
    other = unit("two", retentionDays=400, prices={"currency": "EUR", "outputTokens": 1})
    [shared, *_] = behind_one_address([priced, other, unit("free")], **place)
    assert ledger(shared) == {
        "usage_days": "400", "price_currency": "EUR",
        "model_price": "one:device-hour=2.5\ntwo:output-tokens=1.0",
    }  # fmt: skip
    with pytest.raises(InvalidInput, match="EUR and USD"):
        behind_one_address([priced, unit("two", prices={"deviceHour": 3})], **place)


def test_one_name_at_two_prices_is_refused_at_one_address(planned: MemoryPlan, tmp_path: Path) -> None:
    def unit(name: str, price: float) -> Unit:
        gateway = {"usage": {"prices": {"deviceHour": price}}}
        spec = deployment(gateway=gateway, model={"uri": "file:///m", "servedName": "same"})
        metadata = spec.metadata.model_copy(update={"name": name})
        return unit_for(spec.model_copy(update={"metadata": metadata}), planned, tmp_path)

    place: dict[str, Any] = {"host": "127.0.0.1", "port": 1, "directory": tmp_path}
    with pytest.raises(InvalidInput, match="serve same at different prices"):
        behind_one_address([unit("one", 1), unit("two", 2)], **place)
    assert behind_one_address([unit("one", 1), unit("two", 1)], **place)


def test_the_redis_of_the_spec_is_told_to_both_children(planned: MemoryPlan, tmp_path: Path) -> None:
    unit = unit_for(deployment(prefixIndex={"redis": {"url": "redis://r:1"}}), planned, tmp_path)
    for command in unit.commands().values():
        assert command.environment["MAMBASERVE_REDIS_URL"] == "redis://r:1"
        assert command.environment["MAMBASERVE_PREFIX_INDEX_SCOPE"].endswith(f"/{unit.name}")
    without = unit_for(deployment(), planned, tmp_path)
    assert all("MAMBASERVE_REDIS_URL" not in each.environment for each in without.commands().values())


def test_traces_are_sent_from_both_children_as_the_spec_says(planned: MemoryPlan, tmp_path: Path) -> None:
    asked = {"otlpEndpoint": "http://c:1", "protocol": "grpc", "sampling": 0.25, "slowAfter": "500ms"}
    for command in unit_for(deployment(telemetry=asked), planned, tmp_path).commands().values():
        given = command.environment
        assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://c:1"
        assert given["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc"
        assert (given["OTEL_TRACES_SAMPLER_ARG"], given["MAMBASERVE_SLOW_REQUEST"]) == ("0.25", "0.5")
    for command in unit_for(deployment(), planned, tmp_path).commands().values():
        assert not [name for name in command.environment if name.startswith("OTEL_")]


def test_a_unit_knows_its_children_and_addresses(planned: MemoryPlan, tmp_path: Path) -> None:
    spec = deployment(
        model={"uri": "file://./model"},
        engine={"env": [{"name": "A", "value": "b"}]},
        rollout={"drainTimeout": "12s"},
    )
    unit = unit_for(spec, planned, tmp_path)
    assert (unit.engines[0].name, unit.gateway) == ("one-engine", "one-gateway")
    assert (unit.url, unit.engines[0].url) == ("http://127.0.0.1:8000", "http://127.0.0.1:5")
    assert settings_of(unit).model == str(tmp_path / "model")
    assert unit.gateway_argv[-2:] == ("--drain-timeout", "12")
    assert unit.commands()[unit.engines[0].name].environment == {
        "A": "b", "MAMBASERVE_PREFIX_INDEX_SCOPE": "default/one",
    }  # fmt: skip
    assert '"model": "one"' in unit.curl()


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")],
)
def test_an_endpoint_is_asked_where_it_answers(
    planned: MemoryPlan, tmp_path: Path, host: str, url: str
) -> None:
    assert unit_for(deployment(), planned, tmp_path, host=host).url == url


def test_constraints_and_workload_follow_the_spec() -> None:
    settings = engine_settings(
        deployment(
            model={"uri": "file:///m", "maxModelLen": 99},
            engine={"dtype": "float16", "maxRunningRequests": 3},
            stateCache={"strategy": "ExtraBuffer", "stateDtype": "float16"},
            memory={"arena": "1Gi", "utilization": 0.7},
            workload={"promptTokens": 5, "outputTokens": 6, "sharedPrefixRatio": 0.25, "concurrency": 7},
        )
    )
    assert Constraints.of(settings) == Constraints(
        strategy="ExtraBuffer", state_dtype="float16", dtype="float16", max_model_len=99,
        max_running_requests=3, utilization=0.7, arena_bytes=GIB,
    )  # fmt: skip
    assert Workload.of(settings) == Workload(5, 6, 0.25, 7, declared=True)
    assert Workload.of(engine_settings(deployment())) == Workload()


def test_auto_leaves_the_choice_open() -> None:
    assert Constraints.of(engine_settings(deployment())) == Constraints()


def test_the_curl_line_asks_what_the_model_can_answer(planned: MemoryPlan, tmp_path: Path) -> None:
    unit = unit_for(deployment(), planned, tmp_path)
    for chat, path in ((True, "/v1/chat/completions"), (False, "/v1/completions")):
        words = shlex.split(unit.curl(chat=chat))
        assert words[1] == f"{unit.url}{path}"
        assert ("messages" in json.loads(words[-1])) is chat


def test_several_deployments_are_models_of_one_gateway_by_served_name_or_by_their_own(
    planned: MemoryPlan, tmp_path: Path
) -> None:
    def unit(name: str, **spec: Any) -> Unit:
        body = {"metadata": {"name": name}, "spec": {"model": {"uri": "file:///m"}, **spec}}
        return unit_for(MambaDeployment.model_validate(body), planned, tmp_path)

    few = {"limits": {"maxInFlight": 7, "perKey": {"requestsPerMinute": 60}}}
    nano = unit("nano", model={"uri": "file:///m", "servedName": "Nano-9B"}, gateway=few)
    twins = [unit(name, model={"uri": "file:///m", "servedName": "twin"}) for name in ("one", "two")]
    units = behind_one_address([nano, *twins], host="127.0.0.1", port=8000, directory=tmp_path)
    assert {each.url for each in units} == {"http://127.0.0.1:8000"}
    assert [each.model for each in units] == ["Nano-9B", "one", "two"]
    commands = [each.commands()["gateway"] for each in units]
    command = commands[0]
    assert commands == [command] * 3
    assert command.file is not None
    command.file.write_text(command.document)
    settings = GatewaySettings(**parsed(command.argv[1:]), prefix_index_scope="x")
    document = ModelsFile(str(settings.models_file)).read()
    assert [(entry.names, entry.engine_name) for entry in document.models] == [
        (("Nano-9B", "nano"), "Nano-9B"),
        (("one",), "twin"),
        (("two",), "twin"),
    ]
    own = [model_settings(settings, entry) for entry in document.models]
    assert [each.backend for each in own] == [("http://127.0.0.1:5",)] * 3
    assert [each.max_in_flight for each in own] == [7, 1024, 1024]
    assert own[0].key_limits.limits_of(ANYONE) == KeyLimits(requests_per_minute=60)
    assert own[0].index_scope == "default/nano"
    clash = unit("two", model={"uri": "file:///m", "servedName": "one"})
    with pytest.raises(InvalidInput, match="'one' at one address: give each object its own"):
        behind_one_address([*twins, clash], host="127.0.0.1", port=8000, directory=tmp_path)
