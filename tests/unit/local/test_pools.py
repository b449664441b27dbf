"""Two pools on one machine: processes, ports, settings, the split of the memory, and how they are shown."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import NoFittingPlan
from mamba_cli.local import bring_up
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.plan_view import plan_view
from mamba_cli.local.planning import PlanFlags, PlannedPool, plan_pools
from mamba_cli.local.unit import Unit
from mamba_cli.resource_profiles import of_this_machine
from mamba_planner import Device
from mamba_planner.cards.shipped_profiles import SHIPPED

GIB = 1 << 30


def loaded(**spec: Any) -> LoadedDeployment:
    body = {
        "metadata": {"name": "two"},
        "spec": {
            "model": {"uri": "builtin://tiny-recall"},
            "resources": {"gpus": 0},
            "disaggregation": {},
            **spec,
        },
    }
    return LoadedDeployment(Path("two.yaml"), MambaDeployment.model_validate(body))


def on_this_machine(document: LoadedDeployment, memory: int = 4 * GIB) -> list[PlannedPool]:
    machine = Device("cpu", memory, declared=False)
    return bring_up._plan(document, None, lambda: machine, SHIPPED)


def unit(document: LoadedDeployment, folder: Path) -> Unit:
    [made] = bring_up._units([(document, on_this_machine(document))], "127.0.0.1", [8000], folder, ("run",))
    return made


def test_each_pool_is_a_process_of_its_role_with_a_port_for_states(tmp_path: Path) -> None:
    made = unit(loaded(), tmp_path)
    prefill, decode = made.engines

    assert [engine.name for engine in made.engines] == ["two-prefill", "two-decode"]
    assert (prefill.settings.role, decode.settings.role) == ("prefill", "decode")
    ports = [
        (each.settings.port, each.settings.admin_port, each.settings.transfer_port) for each in made.engines
    ]
    assert len({port for of_engine in ports for port in of_engine}) == 6
    assert prefill.settings.transfer_host == "127.0.0.1"
    assert list(made.commands()) == ["two-prefill", "two-decode", "two-gateway"]
    backends = [made.gateway_argv[at + 1] for at, word in enumerate(made.gateway_argv) if word == "--backend"]
    assert backends == [prefill.url, decode.url]


def test_engines_here_hand_states_over_by_the_transport_of_the_spec(tmp_path: Path) -> None:
    by_nixl = unit(loaded(disaggregation={"transport": "Nixl"}), tmp_path)
    assert [engine.settings.transfer_transport for engine in by_nixl.engines] == ["nixl", "nixl"]
    by_sockets = unit(loaded(), tmp_path)
    assert [engine.settings.transfer_transport for engine in by_sockets.engines] == ["sockets", "sockets"]


@pytest.mark.parametrize(("pools", "least"), [({}, "512"), ({"handOverTokens": 700}, "700")])
def test_the_gateway_here_hands_over_prompts_as_the_spec_says(
    pools: dict[str, Any], least: str, tmp_path: Path
) -> None:
    document = loaded(disaggregation=pools)
    argv = unit(document, tmp_path).gateway_argv

    assert argv[argv.index("--hand-over-tokens") + 1] == least
    prefill, _ = on_this_machine(document)
    assert any(f"{least} tokens" in note for note in prefill.outcome.notes)


def test_both_pools_hold_states_of_one_type_and_share_the_memory(tmp_path: Path) -> None:
    pools = on_this_machine(loaded())
    plans = [pool.outcome.plan for pool in pools]

    assert [pool.outcome.device.memory for pool in pools] == [2 * GIB, 2 * GIB]
    assert len({plan.state_dtype for plan in plans if plan is not None}) == 1
    assert [engine.settings.arena_bytes for engine in unit(loaded(), tmp_path).engines] == [
        plan.arena_bytes for plan in plans if plan is not None
    ]


def test_a_pool_gets_its_own_cache_settings(tmp_path: Path) -> None:
    made = unit(
        loaded(
            disaggregation={
                "prefill": {"stateCache": {"strategy": "NoBuffer"}},
                "decode": {
                    "stateCache": {"strategy": "ExtraBuffer", "hostMemory": "64Mi", "disk": {"size": "1Gi"}}
                },
            }
        ),
        tmp_path,
    )
    prefill, decode = (engine.settings for engine in made.engines)

    assert (prefill.strategy, decode.strategy) == ("NoBuffer", "ExtraBuffer")
    assert (prefill.host_memory, decode.host_memory) == (None, 64 << 20)
    assert (prefill.disk_cache, decode.disk_cache_bytes) == (None, GIB - GIB // 16)
    assert str(decode.disk_cache).endswith("states/two-decode")


def test_the_plans_of_both_pools_are_shown() -> None:
    console = Console(file=StringIO(), width=120, no_color=True)
    pools = plan_pools(
        loaded(workload={"concurrency": 8, "promptTokens": 500}, stateCache={"hostMemory": "64Mi"}),
        PlanFlags(device_memory=4 * GIB),
    )
    for pool in pools:
        console.print(plan_view(pool.outcome))
    text = console.file.getvalue()  # type: ignore[attr-defined]

    assert [pool.outcome.to_json()["role"] for pool in pools] == ["prefill", "decode"]
    assert "two prefill" in text
    assert "two decode" in text
    assert "1 state at once, beside 8 running" in text
    assert "kept for readers" in text
    assert "host memory" in text


def test_host_memory_of_all_engines_has_to_be_there() -> None:
    pools = on_this_machine(loaded(stateCache={"hostMemory": "1Gi"}))
    outcomes = [pool.outcome for pool in pools]

    bring_up._check_room(outcomes, lambda: Device("cpu", 4 * GIB, declared=False))
    with pytest.raises(NoFittingPlan, match="two prefill, two decode together need"):
        bring_up._check_room(outcomes, lambda: Device("cpu", 2 * GIB, declared=False))


def test_a_profile_of_a_pool_says_whether_its_engine_wants_a_gpu() -> None:
    def uses_gpus(**pools: Any) -> bool:
        return bring_up._uses_gpus(loaded(resources={}, disaggregation=pools), of_this_machine(SHIPPED))

    cpu = {"resources": {"profile": "cpu-small"}}
    assert not uses_gpus(prefill=cpu, decode=cpu)
    assert uses_gpus(prefill=cpu, decode={"resources": {"profile": "nvidia-l4"}})
