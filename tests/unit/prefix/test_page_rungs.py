"""Which pages of a prompt are told: enough that little is lost between two, and few."""

import pytest

from mamba_prefix.page_rungs import rungs


def test_the_last_rung_before_any_depth_is_at_most_an_eighth_shallower() -> None:
    ladder = rungs(0, 40_000).tolist()
    assert ladder[:20] == [*range(1, 17), 18, 20, 22, 24]
    for depth in range(1, 40_000):
        last = rungs(0, depth)[-1]
        assert depth * 7 / 8 < last <= depth


@pytest.mark.parametrize(("pages", "most"), [(15, 15), (512, 56), (8192, 88), (1 << 22, 159)])
def test_a_long_prompt_has_few(pages: int, most: int) -> None:
    assert len(rungs(0, pages)) == most


def test_an_edge_has_those_of_its_own_pages_wherever_it_is_cut() -> None:
    whole = rungs(0, 3000).tolist()
    for cut in (1, 15, 16, 17, 1000, 2999):
        assert rungs(0, cut).tolist() + rungs(cut, 3000).tolist() == whole
    assert rungs(17, 17).tolist() == []
