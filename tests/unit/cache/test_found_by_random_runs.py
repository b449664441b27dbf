"""Defects that random runs found, each in its smallest form."""

import random

from cache_bench import CacheBench, ids
from engine_trial import EngineTrial, TrialSetup
from mamba_planner.strategy import reservation


def test_a_prompt_shorter_than_a_page_is_forgotten_once_it_is_computed() -> None:
    trial = EngineTrial(TrialSetup(page_size=16, pages_per_slab=1), random.Random(0))
    trial.add([1, 2, 3], 5)
    trial.step()
    assert not trial.cache._prefilling
    trial.close()


def test_a_page_replaced_by_the_trees_copy_waits_for_the_step_that_still_reads_it() -> None:
    trial = EngineTrial(TrialSetup(page_size=4, pages_per_slab=5, rows=2), random.Random(0))
    trial.simulated._eager = lambda _: 0
    prompt = list(range(1, 14))
    trial.add(prompt, 20, n=1)
    trial.add(prompt, 20, n=1)
    trial.step()
    # Both prompts ran in step 1; its commit, inside this call, comes after the launch of step 2.
    trial.step()
    slots, pages = trial.runner.named[2]
    assert slots
    assert (trial.arena.page_owner[pages] != 0).all()
    trial.close()


def test_a_change_of_strategy_reserves_slots_beside_those_of_prefill_checkpoints() -> None:
    bench = CacheBench.make(strategy="NoBuffer")
    tokens = ids(range(17))
    allocation = bench.admit(tokens)
    assert allocation is not None
    bench.launch(allocation, 17)
    assert allocation.pending
    assert bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True)) is None
    assert len(allocation.spare) == 2
    assert bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True)) is None
    assert len(allocation.spare) == 2
    bench.check()


def test_what_an_aborted_sequence_left_in_a_step_that_fails_is_never_served() -> None:
    for how in ("before", "half", "after"):
        trial = EngineTrial(TrialSetup(page_size=4, step_tokens=16), random.Random(0))
        trial.simulated._eager = lambda _: 0
        trial.add(list(range(1, 41)), 4)
        trial.runner.fail_steps[2] = how
        trial.step()
        trial.step()
        trial.abort()
        trial.step()
        trial.step()
        assert trial.core.failed_steps == 1
        assert all(node.depth <= 16 for node in trial.cache.tree.walk())
        trial.close()
