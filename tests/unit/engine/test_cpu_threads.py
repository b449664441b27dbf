"""Threads that nobody has chosen are chosen so that the engine gets on with its neighbours."""

from __future__ import annotations

import pytest

from mamba_server.engine.cpu_threads import set_up_threads


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (3, "2"), (16, "15")])
def test_one_core_is_left_to_the_api_process(cores: int, threads: str) -> None:
    environment: dict[str, str] = {}
    set_up_threads(environment, cores)
    assert environment["OMP_NUM_THREADS"] == threads
    assert int(environment["GOMP_SPINCOUNT"]) < 10_000


@pytest.mark.parametrize(
    "chosen", [{"OMP_NUM_THREADS": "7"}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "infinite"}]
)
def test_what_the_user_has_set_stays_and_is_not_contradicted(chosen: dict[str, str]) -> None:
    environment = dict(chosen)
    set_up_threads(environment, 8)
    assert environment.items() >= chosen.items()
    waiting = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
    if waiting & chosen.keys():
        assert waiting & environment.keys() == waiting & chosen.keys()
