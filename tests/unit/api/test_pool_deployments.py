"""The pools of a MambaDeployment: what a pool sets wins, and the rest is that of the spec."""

from typing import Any

from mamba_api.choices import Role
from mamba_api.v1alpha1 import MambaDeployment, pool_deployments
from mamba_settings.spec_settings import engine_settings


def pools(**spec: Any) -> dict[Role, MambaDeployment]:
    return pool_deployments(
        MambaDeployment.model_validate(
            {"metadata": {"name": "nano"}, "spec": {"model": {"uri": "builtin://tiny-recall"}, **spec}}
        )
    )


def test_without_disaggregation_there_is_one_unified_pool() -> None:
    unified = pools(replicas=3)

    assert list(unified) == ["unified"]
    assert unified["unified"].spec.replicas == 3


def test_a_pool_takes_from_the_spec_what_it_does_not_set_itself() -> None:
    both = pools(
        resources={"cpu": "2", "memory": "4Gi", "gpus": 0},
        stateCache={"strategy": "NoBuffer", "trackInterval": 64, "hostMemory": "1Gi"},
        workload={"promptTokens": 4000, "concurrency": 8},
        disaggregation={
            "prefill": {"replicas": 2, "resources": {"cpu": "8"}, "workload": {"concurrency": 2}},
            "decode": {"stateCache": {"strategy": "ExtraBuffer", "disk": {"size": "10Gi"}}},
        },
    )
    prefill, decode = both["prefill"].spec, both["decode"].spec

    assert (prefill.replicas, decode.replicas) == (2, 1)
    assert prefill.resources.manifest() == {"cpu": "8", "memory": "4Gi", "gpus": 0}
    assert decode.resources.manifest() == {"cpu": "2", "memory": "4Gi", "gpus": 0}
    assert (prefill.state_cache.strategy, prefill.state_cache.disk) == ("NoBuffer", None)
    assert (decode.state_cache.strategy, decode.state_cache.track_interval) == ("ExtraBuffer", 64)
    assert decode.state_cache.disk is not None
    assert decode.state_cache.disk.size.bytes == 10 << 30
    assert prefill.workload is not None
    assert decode.workload is not None
    assert (prefill.workload.prompt_tokens, prefill.workload.concurrency) == (4000, 2)
    assert (decode.workload.prompt_tokens, decode.workload.concurrency) == (4000, 8)


def test_the_concurrency_of_the_spec_is_that_of_answers() -> None:
    both = pools(workload={"concurrency": 8}, disaggregation={})
    concurrency = {role: pool.spec.workload and pool.spec.workload.concurrency for role, pool in both.items()}

    assert concurrency == {"prefill": None, "decode": 8}


def test_an_engine_of_a_pool_starts_with_its_role_a_port_for_states_and_its_host_memory() -> None:
    decode = pools(stateCache={"hostMemory": "1Gi"}, disaggregation={})["decode"]
    settings = engine_settings(decode, "decode", transfer_port=8002)

    assert (settings.role, settings.transfer_port, settings.host_memory) == ("decode", 8002, 1 << 30)
    assert engine_settings(decode).transfer_port is None
