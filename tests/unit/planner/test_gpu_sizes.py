"""The sizes that GPUs are sold with, and which is next to which."""

from itertools import pairwise

import pytest

from mamba_cli.fleet.size_search.gpu import KINDS
from mamba_planner.cards.gpu_sizes import MIB, ONE_SIZE, SIZES, one_size_down, one_size_up


def test_no_two_sizes_are_close_enough_to_be_one() -> None:
    assert all(large > small * ONE_SIZE for small, large in pairwise(SIZES))


@pytest.mark.parametrize(
    ("card", "mib", "down", "up"),
    [
        ("T4", 15_360, None, 23_028), ("16Gi", 16_384, None, 23_028), ("L4", 23_034, 15_360, 32_607),
        ("24Gi", 24_576, 15_360, 32_607), ("A100 40GB", 40_960, 32_607, 46_068),
        ("L40S", 46_068, 40_960, 81_559), ("48Gi", 49_152, 40_960, 81_559),
        ("RTX 6000 Ada without ECC", 49_140, 40_960, 81_559), ("H100", 81_559, 46_068, 97_887),
        ("H100 as a process sees it", 81_008, 46_068, 97_887), ("A100 80GB", 81_920, 46_068, 97_887),
        ("H100 NVL", 95_830, 81_559, 143_771), ("H200", 143_771, 97_887, 183_359),
        ("B200", 183_359, 143_771, 275_040), ("B300", 275_040, 183_359, None),
    ],
)  # fmt: skip
def test_the_sizes_beside_what_a_card_reports(card: str, mib: int, down: int | None, up: int | None) -> None:
    expected = tuple(size if size is None else size * MIB for size in (down, up))
    assert (one_size_down(mib * MIB), one_size_up(mib * MIB)) == expected, card


def test_a_slice_of_a_gpu_has_the_smallest_one_above_it_and_beyond_the_largest_is_none() -> None:
    assert (one_size_down(9_856 * MIB), one_size_up(9_856 * MIB)) == (None, 15_360 * MIB)
    assert (one_size_down(400_000 * MIB), one_size_up(400_000 * MIB)) == (275_040 * MIB, None)


def test_every_kind_that_a_fleet_is_planned_of_has_one_of_the_sizes() -> None:
    for kind in KINDS:
        assert any(size / ONE_SIZE <= kind.memory <= size * ONE_SIZE for size in SIZES), kind.name
