"""Every checkpoint in the arena of a real engine is the state of its own sequence at its own depth.

The oracle runs each sequence alone, one token a step, in float64; window and SSM part of every layer count.
"""

import random
from functools import cache
from pathlib import Path

import pytest
import torch

from engines import Answer, greedy, run
from gate_cases import OTHER_THIRD, Case
from mamba_planner.families.registry import load_model_config
from mamba_server.engine.boot import Engine
from mamba_server.engine.sequences.sequence import Phase
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.wire import AddRequest
from prefix_of import prefix_of
from testmodels.batches import CPU, Driver, Run, Sequence, poisoned_views

EXACT = {"rtol": 1e-9, "atol": 1e-9}
State = list[torch.Tensor]
Key = tuple[int, ...]


def requests() -> list[AddRequest]:
    """Return ragged requests, two from one stem; outputs cross page, chunk and track boundaries."""
    rng = random.Random(11)
    stem = [rng.randrange(256) for _ in range(70)]
    prompts = [stem[:1], stem, [*stem[:65], 3, 4, 5], [rng.randrange(256) for _ in range(131)]]
    return [greedy(f"r{index}", prompt, 75) for index, prompt in enumerate(prompts)]


def stored(cache_views: CacheViews, slot: int) -> State:
    return [view[slot].clone() for view in (*cache_views.conv, *cache_views.ssm)]


@cache
def oracle(directory: Path, text: Key) -> list[State]:
    """Return the state after each token."""
    config = load_model_config(directory)
    model = HybridModel.load(config, directory, device=CPU, dtype=torch.float64)
    views = poisoned_views(config, slabs=3, pages=60, page_size=16, dtype=torch.float64)
    driver = Driver(model, views, guard=False)
    sequence = Sequence(list(text), slot=1, pages=list(range(1, 50)))
    states = []
    for depth in range(1, len(text) + 1):
        driver.step([Run(sequence, 1, decode=depth > 1)])
        states.append(stored(views, 1))
    return states


class Watch:
    """Copies each checkpoint when it is first seen complete: in the tree, or held by its sequence."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.views: CacheViews = engine.core._runner._cache
        self.seen: dict[tuple[int, Key], State] = {}

    def look(self, _: int) -> None:
        tree = self.engine.core.cache.tree
        for node in tree.walk():
            if node.slot:
                self.keep(node.slot, tuple(prefix_of(node).tolist()))
        for group in self.engine.core.sequences.values():
            for sequence in group:
                if sequence.phase is Phase.DECODE and sequence.allocation is not None:
                    for each in sequence.allocation.ready:
                        self.keep(each.slot, tuple(sequence.token_ids[: each.depth].tolist()))

    def keep(self, slot: int, key: Key) -> None:
        if (slot, key) not in self.seen:
            self.seen[slot, key] = stored(self.views, slot)

    def check(self, directory: Path, texts: list[Key]) -> set[int]:
        """Return the depths that were compared."""
        for (_, key), state in self.seen.items():
            text = next(each for each in texts if each[: len(key)] == key)
            for mine, true in zip(state, oracle(directory, text)[len(key) - 1], strict=True):
                torch.testing.assert_close(mine, true, **EXACT)
        return {len(key) for _, key in self.seen}


def texts_of(wanted: list[AddRequest], answers: dict[tuple[str, int], Answer]) -> list[Key]:
    return [(*request.token_ids, *answers[request.request_id, 0].tokens) for request in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHER_THIRD, ids=str)
def test_checkpoints_of_ragged_batches_equal_the_token_by_token_oracle(
    random_model: Path, case: Case
) -> None:
    engine = case.boot(random_model, exact=True, chunked_prefill_tokens=160)
    watch = Watch(engine)
    wanted = requests()
    answers = run(engine, wanted, before_step=watch.look)
    again = [greedy(f"{each.request_id}+", text, 9) for each, text in
             zip(wanted, ([*t, 7] for t in texts_of(wanted, answers)), strict=True)]  # fmt: skip
    more = run(engine, again, before_step=watch.look)
    watch.look(0)
    depths = watch.check(random_model, texts_of(again, more))
    assert len(depths) >= 3
    assert any(answer.cached_tokens for answer in more.values())
    if case.strategy != "NoBuffer":
        # 70 tokens of prompt, 128 with the output: only a decode can have left this one.
        assert 128 in depths


def test_a_state_of_a_neighbour_does_not_pass(random_model: Path) -> None:
    """The gate itself: one state in another's place is seen."""
    engine = Case("ExtraBuffer", False, 16, 64).boot(random_model, exact=True)
    watch = Watch(engine)
    wanted = requests()[1:3]
    answers = run(engine, wanted, before_step=watch.look)
    watch.look(0)
    first, second = list(watch.seen)[:2]
    watch.seen[first], watch.seen[second] = watch.seen[second], watch.seen[first]
    with pytest.raises(AssertionError):
        watch.check(random_model, texts_of(wanted, answers))
