"""Every state the model stores is the state of its own sequence at its own depth, window and SSM part alike.

The oracle is the model itself in float64, one sequence, one token per step: its decode path, which the kernel
tests compare with the recurrence.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mamba_kernels.ssd_prefill import reference as ssd_prefill
from mamba_planner.families.registry import load_model_config
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.batches import CPU, Driver, Run, Sequence, poisoned_views

EXACT = {"rtol": 1e-9, "atol": 1e-9}
State = list[torch.Tensor]


@pytest.fixture(scope="module", params=[None, 3], ids=["pieces scanned together", "few chunks at a time"])
def model(checkpoint: Path, request: pytest.FixtureRequest) -> Iterator[HybridModel]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param is not None:
            patch.setattr(ssd_prefill, "SCANNED_CHUNKS", request.param)
        yield HybridModel.load(load_model_config(checkpoint), checkpoint, device=CPU, dtype=torch.float64)


def views(model: HybridModel) -> CacheViews:
    return poisoned_views(model.config, slabs=24, pages=80, page_size=16, dtype=torch.float64)


def stored(cache: CacheViews, slot: int) -> State:
    """Return the whole state in a slot: all windows and SSM parts."""
    return [view[slot].clone() for view in (*cache.conv, *cache.ssm)]


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


ORACLES: dict[tuple[int, ...], tuple[dict[int, State], torch.Tensor]] = {}
"""By text: a step of one token has one chunk, however many are scanned at a time."""


def oracle(model: HybridModel, text: list[int]) -> tuple[dict[int, State], torch.Tensor]:
    """Return the state at every depth 1..n and logits of every token, token by token."""
    if (key := tuple(text)) in ORACLES:
        return ORACLES[key]
    cache = views(model)
    driver = Driver(model, cache, guard=False)
    sequence = Sequence(text, slot=1, pages=list(range(1, 40)))
    states, logits = {}, []
    # The first token has no state to update: it is a prefill piece of one token.
    for depth in range(1, len(text) + 1):
        logits.append(driver.step([Run(sequence, 1, decode=depth > 1)]))
        states[depth] = stored(cache, 1)
    ORACLES[key] = states, torch.cat(logits)
    return ORACLES[key]


def assert_state(got: State, expected: State) -> None:
    for mine, true in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, true, **EXACT)


def sequence(text: list[int], index: int) -> Sequence:
    return Sequence(text, slot=index + 1, pages=list(range(1 + 16 * index, 17 + 16 * index)))


def test_checkpoints_of_a_ragged_prefill_are_those_of_their_own_sequence(model: HybridModel) -> None:
    cache = views(model)
    texts = [tokens(n, n) for n in (2, 70, 133)]
    plans: list[dict[int, int]] = [{1: 10}, {16: 11, 33: 12, 64: 13}, {32: 14, 100: 15, 133: 16}]
    runs = [
        Run(sequence(text, i), len(text), checkpoints=plan, logits="all")
        for i, (text, plan) in enumerate(zip(texts, plans, strict=True))
    ]
    logits = Driver(model, cache).step(runs).split([len(text) for text in texts])
    for index, (text, plan) in enumerate(zip(texts, plans, strict=True)):
        states, expected = oracle(model, text)
        torch.testing.assert_close(logits[index], expected, **EXACT)
        assert_state(stored(cache, index + 1), states[len(text)])
        for depth, slot in plan.items():
            assert_state(stored(cache, slot), states[depth])


def test_pieces_of_any_length_leave_the_states_of_the_whole(model: HybridModel) -> None:
    text = tokens(150, 3)
    states, expected = oracle(model, text)
    other = tokens(90, 4)
    for lengths in ((1, 2, 147), (64, 64, 22), (31, 1, 1, 1, 116), (100, 50), (3, 3, 3, 3, 138)):
        cache = views(model)
        driver = Driver(model, cache)
        cut, beside = sequence(text, 0), sequence(other, 1)
        logits = []
        for length in lengths:
            neighbour = Run(beside, min(17, len(other) - beside.computed), logits="none")
            logits.append(driver.step([neighbour, Run(cut, length, logits="all")]))
            assert_state(stored(cache, 1), states[cut.computed])
        torch.testing.assert_close(torch.cat(logits), expected, **EXACT)


def test_decodes_track_into_a_second_slot_at_the_same_depth(model: HybridModel) -> None:
    cache = views(model)
    driver = Driver(model, cache)
    texts = [tokens(40, 5), tokens(29, 6)]
    pair = [sequence(text, i) for i, text in enumerate(texts)]
    driver.step([Run(each, 20) for each in pair])
    truth = [oracle(model, text)[0] for text in texts]
    late = sequence(tokens(64, 7), 2)
    for depth in range(21, 30):
        prefill = [Run(late, 5, logits="none")]
        driver.step([*prefill, *(Run(each, 1, decode=True, track=10 + i) for i, each in enumerate(pair))])
        for index in range(2):
            assert_state(stored(cache, 10 + index), truth[index][depth])
            assert_state(stored(cache, 1 + index), truth[index][depth])


def test_a_resume_reads_its_checkpoint_in_place_and_leaves_it_alone(model: HybridModel) -> None:
    cache = views(model)
    driver = Driver(model, cache)
    shared = tokens(48, 8)
    first = sequence(shared + tokens(20, 9), 0)
    driver.step([Run(first, 68, checkpoints={48: 10})])
    before = stored(cache, 10)
    branches = []
    for index in (1, 2):
        branch = sequence(shared + tokens(30, 20 + index), index)
        branch.pages = first.pages[:3] + branch.pages  # the shared prefix lies in the first one's pages
        branch.computed, branch.resume_from = 48, 10
        branches.append(branch)
    logits = driver.step([Run(branch, 30, logits="all") for branch in branches]).split([30, 30])
    assert all(torch.equal(a, b) for a, b in zip(before, stored(cache, 10), strict=True))
    for branch, part in zip(branches, logits, strict=True):
        states, expected = oracle(model, branch.tokens)
        torch.testing.assert_close(part, expected[48:], **EXACT)
        assert_state(stored(cache, branch.slot), states[78])


def test_padding_slot_and_unnamed_slots_stay_untouched(model: HybridModel) -> None:
    cache = views(model)
    Driver(model, cache).step([Run(sequence(tokens(33, 1), 0), 33, checkpoints={32: 5})])
    for view in (*cache.conv, *cache.ssm):
        assert view[[0, 2, 3, 4, 6, 7]].isnan().all()
        assert not view[[1, 5]].isnan().any()
    for view in cache.kv:
        assert view[0].isnan().all()


def test_equal_depths_have_equal_bits_when_pieces_end_at_chunk_boundaries(checkpoint: Path) -> None:
    """P3, bitwise: the states do not know how prefill was split."""
    model = HybridModel.load(
        load_model_config(checkpoint), checkpoint, device=CPU, dtype=torch.float64, batch_invariant=True
    )
    text = tokens(160, 2)
    results = []
    for lengths in ((160,), (32, 128), (96, 64), (64, 32, 64)):
        cache = views(model)
        driver = Driver(model, cache)
        cut, beside = sequence(text, 0), sequence(tokens(150, 4), 1)
        for length in lengths:
            driver.step([Run(beside, 13, logits="none"), Run(cut, length)])
        results.append(stored(cache, 1))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
