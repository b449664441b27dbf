"""Threads that nobody has chosen are chosen so that the engine gets on with its neighbours."""

from __future__ import annotations

import pytest

from mamba_server.engine.process_memory.cpu_threads import WAITING, set_up_threads, threads_for

LARGE = 1 << 30


@pytest.mark.parametrize(
    ("weights", "cores", "threads"),
    [(LARGE, 1, 1), (LARGE, 2, 2), (LARGE, 3, 2), (LARGE, 16, 15), (1 << 20, 2, 1), (1 << 20, 16, 1)],
)
def test_a_small_model_takes_one_thread_and_a_large_one_leaves_a_core_to_the_api(
    weights: int, cores: int, threads: int
) -> None:
    assert threads_for(weights, cores) == threads


def test_what_nobody_has_set_is_chosen_and_nothing_spins() -> None:
    environment: dict[str, str] = {}
    assert set_up_threads(environment, 3)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    "chosen", [{"OMP_NUM_THREADS": "7"}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "infinite"}]
)
def test_what_the_user_has_set_stays_and_is_not_contradicted(chosen: dict[str, str]) -> None:
    environment = dict(chosen)
    assert set_up_threads(environment, 8) is ("OMP_NUM_THREADS" not in chosen)
    assert environment.items() >= chosen.items()
    waiting = set(WAITING)
    if waiting & chosen.keys():
        assert waiting & environment.keys() == waiting & chosen.keys()
