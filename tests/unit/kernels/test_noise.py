"""The noise of sampling: a pure function, distributed as it should be, and independent where it must be."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_kernels.sample import noise
from mamba_kernels.sample.noise import gumbel, scatter_tokens, seed_words

CPU = torch.device("cpu")


def rows(seeds: list[int], positions: list[int], vocab: int = 500) -> torch.Tensor:
    words = torch.tensor([seed_words(seed) for seed in seeds], dtype=torch.int32)
    return gumbel(words, torch.tensor(positions, dtype=torch.int32), scatter_tokens(vocab, CPU))


@given(st.integers(-(2**70), 2**70))
def test_any_seed_a_client_sends_becomes_two_words_of_32_bits(seed: int) -> None:
    for word in seed_words(seed):
        assert -(2**31) <= word < 2**31
    torch.tensor(seed_words(seed), dtype=torch.int32)


def test_seeds_are_taken_modulo_64_bits_and_differ_below() -> None:
    assert seed_words(5) == seed_words(5 + 2**64)
    assert seed_words(-1) == seed_words(2**64 - 1)
    seeds = [*range(-500, 500), *(2**63 - 1 - n for n in range(100))]
    assert len({seed_words(seed) for seed in seeds}) == len(seeds)


def test_every_token_id_keeps_a_key_of_its_own() -> None:
    assert len(scatter_tokens(300_000, CPU).unique()) == 300_000


def test_the_noise_is_standard_gumbel() -> None:
    drawn = rows(list(range(400)), [17] * 400).double().flatten()
    assert drawn.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert drawn.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    for quantile in (0.01, 0.25, 0.5, 0.75, 0.99):
        expected = -math.log(-math.log(quantile))
        assert (drawn <= expected).double().mean().item() == pytest.approx(quantile, abs=0.005)


def test_the_noise_is_finite_even_where_the_bits_are_all_equal() -> None:
    """Noise of minus infinity would ban a token for ever, of plus infinity force it."""
    extreme = torch.tensor([[0, 0], [-1, -1], [2**31 - 1, -(2**31)]], dtype=torch.int32)
    for position in (0, 1, -1, 2**31 - 1):
        made = gumbel(extreme, torch.full((3,), position, dtype=torch.int32), scatter_tokens(4096, CPU))
        assert made.isfinite().all()
    # The smallest and the largest value that 23 bits can make.
    assert rows(list(range(200)), [3] * 200, 5000).abs().max().item() < 20


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**20)), min_size=1, max_size=6), st.randoms()
)
def test_a_row_has_the_same_noise_alone_and_at_any_place_of_a_batch(pairs: list, rng) -> None:
    together = rows([seed for seed, _ in pairs], [at for _, at in pairs])
    order = list(range(len(pairs)))
    rng.shuffle(order)
    shuffled = rows([pairs[i][0] for i in order], [pairs[i][1] for i in order])
    assert torch.equal(shuffled, together[order])
    for index, (seed, at) in enumerate(pairs):
        assert torch.equal(rows([seed], [at])[0], together[index])


@pytest.mark.parametrize("block", [1, 700, 1 << 20])
def test_how_much_is_made_at_once_changes_no_bit(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(list(range(9)), list(range(9)))
    monkeypatch.setattr(noise, "BLOCK_ELEMENTS", block)
    assert torch.equal(rows(list(range(9)), list(range(9))), expected)


def test_a_larger_vocabulary_gives_the_first_tokens_the_same_noise() -> None:
    assert torch.equal(rows([5], [9], 100)[0], rows([5], [9], 1000)[0, :100])


@pytest.mark.parametrize("what", ["seed", "position", "token"])
def test_neighbours_share_nothing(what: str) -> None:
    seeds, positions = ([5, 6], [9, 9]) if what == "seed" else ([5, 5], [9, 10])
    first, second = rows(seeds, positions, 20_000)
    if what == "token":
        first, second = first[:-1], first[1:]
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1].item()
    assert abs(correlation) < 0.03
    assert (first == second).double().mean().item() < 0.001


def test_the_best_of_logits_and_noise_is_a_sample_of_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    count = 20_000
    words = torch.tensor([seed_words(8)] * count, dtype=torch.int32)
    made = gumbel(words, torch.arange(count, dtype=torch.int32), scatter_tokens(5, CPU))
    share = torch.bincount((logits + made).argmax(-1), minlength=5) / count
    assert torch.allclose(share, logits.softmax(-1), atol=0.012)


def test_the_inputs_are_left_as_they_were() -> None:
    words = torch.tensor([seed_words(1)], dtype=torch.int32)
    positions, scattered = torch.tensor([3], dtype=torch.int32), scatter_tokens(50, CPU)
    copies = words.clone(), positions.clone(), scattered.clone()
    gumbel(words, positions, scattered)
    for given_in, copy in zip((words, positions, scattered), copies, strict=True):
        assert torch.equal(given_in, copy)


def test_both_words_of_a_seed_count_and_neither_stands_in_for_the_position() -> None:
    words = torch.tensor([[7, 3], [7, 4], [8, 3], [7, 3]], dtype=torch.int32)
    made = gumbel(words, torch.tensor([5, 5, 5, 6], dtype=torch.int32), scatter_tokens(20_000, CPU))
    correlation = torch.corrcoef(made)
    assert (correlation - torch.eye(4)).abs().max().item() < 0.03
