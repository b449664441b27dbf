"""From a spec to the command lines of the children: every field arrives, and the real commands take them."""

from pathlib import Path
from typing import Any

import pytest
import typer.main

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli import main
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.translate import gateway_argv, serve_argv
from mamba_cli.local.unit import unit_of
from mamba_server.budget import Constraints, Device, Plan, UnusableInput, Workload, plan
from mamba_server.budget.of_spec import constraints_of, workload_of
from mamba_server.model.families import load_model_config
from mamba_server.settings import EngineSettings

CONFIG = Path(__file__).parents[2] / "golden" / "configs" / "granite-4.0-h-350m.json"
GIB = 1 << 30


def deployment(**spec: Any) -> MambaDeployment:
    body = {"metadata": {"name": "one"}, "spec": {"model": {"uri": "file:///m"}, **spec}}
    return MambaDeployment.model_validate(body)


@pytest.fixture
def planned(tmp_path: Path) -> Plan:
    (tmp_path / "config.json").write_text(CONFIG.read_text())
    return plan(load_model_config(tmp_path), Constraints(arena_bytes=GIB), Device("cpu", 0))


def parsed(argv: list[str]) -> dict[str, Any]:
    """The options as the real `mambaserve serve` or `gateway` reads them."""
    main._collect()
    group: Any = typer.main.get_command(main.app)
    return dict(group.commands[argv[0]].make_context(argv[0], argv[1:]).params)


def test_serve_accepts_every_argument_and_takes_the_plan_over(planned: Plan) -> None:
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
    )
    argv = serve_argv(spec, planned, model="/m", device="cpu", port=1, admin_port=2)
    options = {key: value for key, value in parsed(argv).items() if value is not None}
    settings = EngineSettings(**options)
    assert settings.served_model_name == "nice"
    assert (settings.strategy, settings.state_dtype) == (planned.strategy, planned.state_dtype)
    assert (settings.port, settings.admin_port, settings.host) == (1, 2, "127.0.0.1")
    assert (settings.page_size, settings.chunked_prefill_tokens, settings.track_interval) == (32, 512, 64)
    assert (settings.overlap, settings.prefix_caching, settings.batch_invariant) == (False, False, True)
    assert (settings.eviction, settings.max_checkpoints_per_path) == ("LRU", 2)
    assert settings.arena_bytes == planned.arena_bytes
    assert settings.max_running_requests == planned.max_running_requests
    assert settings.max_model_len == planned.max_model_len


def test_what_the_engine_gets_it_plans_to_the_same_arena(planned: Plan, tmp_path: Path) -> None:
    argv = serve_argv(deployment(), planned, model="/m", device="cpu", port=1, admin_port=2)
    options = {key: value for key, value in parsed(argv).items() if value is not None}
    again = plan(
        load_model_config(tmp_path), Constraints.of(EngineSettings(**options)), Device("cpu", GIB, told=False)
    )
    assert (again.strategy, again.state_dtype) == (planned.strategy, planned.state_dtype)
    assert (again.arena_bytes, again.slabs) == (planned.arena_bytes, planned.slabs)
    assert again.max_running_requests == planned.max_running_requests


def test_on_a_gpu_the_engine_plans_with_what_the_device_has(planned: Plan) -> None:
    spec = deployment(memory={"deviceMemory": "24Gi", "utilization": 0.8})
    argv = serve_argv(spec, planned, model="/m", device="cuda", port=1, admin_port=2)
    assert "--arena-bytes" not in argv
    assert argv[argv.index("--utilization") + 1] == "0.8"
    assert argv[argv.index("--device-memory") + 1] == str(24 * GIB)


def test_extra_arguments_have_the_last_word(planned: Plan) -> None:
    spec = deployment(engine={"extraArgs": ["--seed", "7"]})
    argv = serve_argv(spec, planned, model="/m", device="cpu", port=1, admin_port=2)
    assert argv[-2:] == ["--seed", "7"]
    assert parsed(argv)["seed"] == 7


def test_gateway_accepts_its_arguments() -> None:
    options = parsed(gateway_argv(backend="http://127.0.0.1:5", host="127.0.0.1", port=9))
    assert options["backend"] == ["http://127.0.0.1:5"] or options["backend"] == ("http://127.0.0.1:5",)
    assert options["port"] == 9


def test_a_unit_knows_its_children_and_addresses(planned: Plan, tmp_path: Path) -> None:
    file = tmp_path / "mamba.yaml"
    loaded = LoadedDeployment(
        file, deployment(model={"uri": "file://./model"}, engine={"env": [{"name": "A", "value": "b"}]})
    )
    unit = unit_of(
        loaded, planned, device="cpu", host="0.0.0.0", port=8000, engine_port=5, admin_port=6,
        drain_timeout=12, launcher=("run",),
    )  # fmt: skip
    assert (unit.engine, unit.gateway) == ("one-engine", "one-gateway")
    assert (unit.url, unit.engine_url) == ("http://127.0.0.1:8000", "http://127.0.0.1:5")
    assert unit.engine_argv[:4] == ("run", "serve", "--drain-timeout", "12")
    assert str(tmp_path / "model") in unit.engine_argv
    assert unit.gateway_argv[-2:] == ("--drain-timeout", "12")
    assert unit.environment == {"A": "b"}
    assert '"model": "one"' in unit.curl()


def test_constraints_and_workload_follow_the_spec() -> None:
    spec = deployment(
        model={"uri": "file:///m", "maxModelLen": 99},
        engine={"dtype": "float16", "maxRunningRequests": 3},
        stateCache={"strategy": "ExtraBuffer", "stateDtype": "float16"},
        memory={"arena": "1Gi", "utilization": 0.7},
        workload={"promptTokens": 5, "outputTokens": 6, "sharedPrefixRatio": 0.25, "concurrency": 7},
    ).spec
    assert constraints_of(spec) == Constraints(
        strategy="ExtraBuffer", state_dtype="float16", dtype="float16", max_model_len=99,
        max_running_requests=3, utilization=0.7, arena_bytes=GIB,
    )  # fmt: skip
    assert workload_of(spec) == Workload(5, 6, 0.25, 7, declared=True)
    assert workload_of(deployment().spec) is None
    assert constraints_of(spec, utilization=0.5, tensor_parallel=2).tensor_parallel == 2


def test_auto_leaves_the_choice_open() -> None:
    assert constraints_of(deployment().spec) == Constraints()


def test_a_share_that_cannot_be_is_refused() -> None:
    with pytest.raises(UnusableInput, match="utilization"):
        constraints_of(deployment().spec, utilization=7)
