"""Triton's choice is the reference's: with every parameter, alone and among others, on any logits."""

import pytest
import torch

from mamba_kernels.sample import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.sample.noise import seed_words
from mamba_kernels.sample.reference import sample as reference
from mamba_kernels.sample.triton import sample
from matrix_size import LARGE

VOCABULARY = 257
ROWS: list[dict[str, float]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.3, "top_k": 63},
    {"temperature": 1.0, "top_k": 500},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 2.0, "top_p": 0.01},
    {"temperature": 0.8, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.5, "min_p": 0.02, "top_k": 40, "top_p": 0.8},
    {"temperature": 1e-6, "top_p": 0.9},
    {"counts_row": 2, "repetition": 1.7},
    {"temperature": 1.0, "counts_row": 0, "presence": 1.5, "frequency": 0.5, "top_k": 20},
]


def parameters(rows: list[dict[str, float]], seeds: list[int]) -> SampleParameters:
    defaults = {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "counts_row": -1, "repetition": 1.0,
        "presence": 0.0, "frequency": 0.0,
    }  # fmt: skip
    integers = ("top_k", "counts_row")
    return SampleParameters(
        **{
            name: torch.tensor(
                [row.get(name, default) for row in rows],
                dtype=torch.int32 if name in integers else torch.float32,
            )
            for name, default in defaults.items()
        },
        words=torch.tensor([seed_words(seed) for seed in seeds], dtype=torch.int32),
    )


def counts(vocabulary: int = VOCABULARY) -> PenaltyCounts:
    g = torch.Generator().manual_seed(7)
    return PenaltyCounts(
        torch.randint(-3, 4, (3, vocabulary), generator=g, dtype=torch.int32).clamp_(0),
        torch.rand(3, vocabulary, generator=g) < 0.2,
    )


def drawn(n: int, vocabulary: int, seed: int) -> torch.Tensor:
    return torch.randn(n, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4


def positions(n: int, first: int) -> torch.Tensor:
    return torch.arange(first, first + n, dtype=torch.int32)


def same(got: TokenChoice, expected: TokenChoice) -> None:
    assert got.ids.tolist() == expected.ids.tolist()
    assert got.finite.tolist() == expected.finite.tolist()


@pytest.mark.parametrize("step", range(2))
def test_every_parameter_does_what_the_reference_does(step: int) -> None:
    logits, at = drawn(len(ROWS), VOCABULARY, step), positions(len(ROWS), 100 * step)
    chosen = parameters(ROWS, [step * 1000 + n for n in range(len(ROWS))])
    ours, theirs = counts(), counts()
    same(sample(logits.clone(), chosen, ours, at), reference(logits.clone(), chosen, theirs, at))
    assert torch.equal(ours.output, theirs.output)
    assert ours.output.sum() == counts().output.sum() + 2, "two rows have penalties"


@pytest.mark.parametrize("vocabulary", [1, 63, 100, 5000])
def test_vocabularies_of_any_size(vocabulary: int) -> None:
    """The largest takes two tiles, and five blocks of a program that looks at the whole row."""
    rows = [{}, {"temperature": 1.0, "top_p": 0.7}, {"temperature": 1.0, "top_k": 50}]
    logits, chosen, none = drawn(3, vocabulary, 5), parameters(rows, [1, 2, 3]), counts(vocabulary)
    at = positions(3, 9)
    same(sample(logits.clone(), chosen, none, at), reference(logits.clone(), chosen, none, at))


FILTERS: list[dict[str, float]] = [
    {"temperature": heat, **filters}
    for heat in (0.7, 1.5)
    for filters in (
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.02},
        {"top_p": 0.9},
        {"min_p": 0.5},
        {"top_k": 20, "top_p": 0.95},
        {"top_k": 60, "top_p": 0.3},
        {"top_k": 40, "top_p": 0.6, "min_p": 0.3},
    )
]


@pytest.mark.parametrize(
    ("spread", "digits"), [(0.02, 24), (1.0, 4), *([(1.0, 24), (6.0, 24)] if LARGE else [])]
)
def test_what_was_drawn_and_may_not_come_gives_way_to_the_best_of_what_may(
    spread: float, digits: int
) -> None:
    """Draw from nearly even logits, which reject nearly every draw.

    The last of the best tokens is hidden between two bounds; few digits make many tokens equal.
    """
    logits, at = drawn(len(FILTERS), 300, 6) / 4 * spread, positions(len(FILTERS), 50)
    mantissa, exponent = torch.frexp(logits)
    logits = torch.ldexp((mantissa * 2**digits).round() / 2**digits, exponent)
    chosen, none = parameters(FILTERS, list(range(len(FILTERS)))), counts(300)
    same(sample(logits.clone(), chosen, none, at), reference(logits.clone(), chosen, none, at))


def test_a_row_chooses_the_same_alone_and_among_others() -> None:
    logits, at = drawn(len(ROWS), VOCABULARY, 4), positions(len(ROWS), 3)
    together = sample(logits.clone(), parameters(ROWS, list(range(len(ROWS)))), counts(), at).ids
    for n in (1, 9, 12):
        alone = sample(logits[n : n + 1].clone(), parameters([ROWS[n]], [n]), counts(), at[n : n + 1])
        assert alone.ids.tolist() == [together[n]]


def test_equals_of_the_last_token_stay_and_the_first_of_equals_is_most_likely() -> None:
    logits = torch.full((16, 100), -3.0)
    logits[:, [20, 30, 40, 50]] = 2.0
    random = {"temperature": 1.0}
    rows = [{**random, "top_k": 2}] * 8 + [{**random, "top_p": 0.3}] * 8
    chosen = sample(logits.clone(), parameters(rows, list(range(16))), counts(100), positions(16, 0)).ids
    for part in (chosen[:8], chosen[8:]):
        assert 2 < len(set(part.tolist()) & {20, 30, 40, 50}) == len(set(part.tolist()))
    assert sample(logits[:1], parameters([{}], [0]), counts(100), positions(1, 0)).ids.tolist() == [20]


def test_rows_that_are_not_finite_are_named_and_the_others_unmoved() -> None:
    rows = [{"temperature": 1.0, "top_p": 0.9, "top_k": 9, "min_p": 0.01}] * 6
    logits = drawn(6, VOCABULARY, 8)
    truth = sample(logits.clone(), parameters(rows, list(range(6))), counts(), positions(6, 0)).ids
    logits[1, 5], logits[2], logits[3, 7], logits[4] = torch.nan, torch.nan, torch.inf, -torch.inf
    logits[5, :50] = -torch.inf
    got = sample(logits.clone(), parameters(rows, list(range(6))), counts(), positions(6, 0))
    assert got.finite.tolist() == [True, False, False, False, False, True]
    assert got.ids[0] == truth[0]
    assert ((got.ids >= 0) & (got.ids < VOCABULARY)).all()
    assert got.ids[5] >= 50
