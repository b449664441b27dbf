"""The strategies as reservations: what each promises, and what a cache under it then holds."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_bench import CacheBench, ids
from mamba_api.choices import Strategy
from mamba_planner.strategy import (
    MOST_ROBUST_FIRST,
    STRATEGIES,
    receptions_within,
    reservation,
    slots_of_sequences,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("overlap", [True, False])
def test_every_strategy_a_setting_may_name_has_a_reservation_under_its_name(overlap: bool) -> None:
    assert set(get_args(Strategy)) == set(STRATEGIES) == set(MOST_ROBUST_FIRST)
    for name in STRATEGIES:
        assert reservation(name, overlap=overlap).name == name


@given(
    total=st.integers(0, 60), running=st.integers(0, 9), receiving=st.integers(0, 9), each=st.integers(1, 3)
)
def test_an_engine_takes_the_states_that_its_plan_has_slots_for(
    total: int, running: int, receiving: int, each: int
) -> None:
    unused = total - running * each - receiving
    more = receptions_within(unused, receiving, each)
    assert not more or slots_of_sequences(running, receiving + more, each) <= total
    assert slots_of_sequences(running, receiving + more + 1, each) > total


def test_the_names_are_listed_once_and_ordered_once() -> None:
    """A list of names that somebody forgets to extend is a strategy that half of the product refuses."""
    found = []
    roots = ("libs", "operator", "server", "cli", "kernels")
    for path in sorted(path for root in roots for path in (ROOT / root).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # To parse every file takes seconds.
        for node in ast.walk(ast.parse(text)) if "NoBuffer" in text else ():
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                values = {each.value for each in node.elts if isinstance(each, ast.Constant)}
                if values >= {"NoBuffer", "ExtraBuffer"}:
                    found.append(path.relative_to(ROOT).as_posix())
    # The contract's own literals give way to the alias with the parts of the contract.
    packages = [name.split("/")[1] for name in set(found) if "/v1alpha1/" not in name]
    assert sorted(packages) == ["mamba_api", "mamba_planner"]


def test_only_without_a_buffer_decoding_leaves_no_checkpoint() -> None:
    tracking = {name: reservation(name, overlap=True).tracks_decode for name in STRATEGIES}
    assert tracking == {"NoBuffer": False, "ExtraBuffer": True, "ExtraBufferLazy": True}


@pytest.mark.parametrize("name", ["Auto", "", "nobuffer", "ExtraBuffer "])
def test_other_names_are_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}.*NoBuffer, ExtraBuffer"):
        reservation(name, overlap=True)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_admitted_sequence_holds_what_its_strategy_reserves_and_one_slab_less_admits_none(
    name: str, overlap: bool
) -> None:
    slots = reservation(name, overlap=overlap).slots_per_sequence
    # Padding, the slots and one slab for the pages of the prompt.
    enough = CacheBench.make(strategy=name, overlap=overlap, slabs=1 + slots + 1)
    held = enough.admit(ids(range(8)))
    assert held is not None
    assert 1 + held.reserved == 1 + len(held.tracking_slots) == slots
    enough.check()
    short = CacheBench.make(strategy=name, overlap=overlap, slabs=1 + slots)
    assert short.admit(ids(range(8))) is None
    short.check()


@pytest.mark.parametrize("name", ["ExtraBuffer", "ExtraBufferLazy"])
@pytest.mark.parametrize("overlap", [True, False])
def test_while_decoding_the_last_complete_checkpoint_is_never_lost_to_the_next_one(
    name: str, overlap: bool
) -> None:
    bench = CacheBench.make(strategy=name, overlap=overlap, slabs=30, interval=4)
    tokens = ids(range(100))
    held = bench.prefill(tokens[:5])
    kept: list[int] = []
    previous = 0
    for depth in range(6, 60):
        step = bench.decode(held)
        kept.append(max((each.depth for each in held.ready), default=0))
        if overlap and previous:
            bench.commit(held, tokens[: depth - 1], previous)
        elif not overlap:
            bench.commit(held, tokens[:depth], step)
        previous = step
    two_slots = overlap or name == "ExtraBufferLazy"
    after_first = kept[kept.index(next(each for each in kept if each)) :]
    if two_slots:
        # While the next is being written the last one is still there.
        assert all(after_first)
        assert after_first == sorted(after_first)
    else:
        # One slot alone: while it is written again there is nothing to fall back on.
        assert not all(after_first)
