"""Prompts of given lengths, sharing exactly what they should."""

from random import Random

import pytest

from mamba_cli.bench.prompts import LOWEST_ID, LengthRange, blocks, random_prompts, tokens


def common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )


def test_a_stream_is_the_same_in_every_process_and_differs_by_name() -> None:
    # Written down: another run of another machine must make the same prompts.
    assert tokens("0/block/1", 6, 256) == (201, 70, 217, 57, 107, 176)
    assert tokens("a", 50, 1000) == tokens("a", 50, 1000)
    assert common(tokens("a", 50, 1000), tokens("b", 50, 1000)) < 5


def test_ids_leave_out_the_special_tokens_and_cover_the_rest() -> None:
    drawn = set(tokens("cover", 5000, 64))
    assert drawn == set(range(LOWEST_ID, 64))


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        tokens("a", 1, LOWEST_ID)


def test_equal_blocks_give_equal_tokens_and_the_last_is_cut() -> None:
    one = blocks((1, 2, 3), 1300, 256)
    two = blocks((1, 2, 9), 1400, 256)
    assert (len(one), len(two)) == (1300, 1400)
    assert common(one, two) == pytest.approx(1024, abs=3)
    assert common(one, two) >= 1024
    assert blocks((3,), 512, 256)[:276] == one[1024:]


def test_what_the_blocks_do_not_cover_is_the_prompt_s_own() -> None:
    made = blocks((1,), 700, 256)
    assert made[:512] == blocks((1,), 512, 256)
    assert len(made) == 700


def test_the_seed_changes_every_block() -> None:
    assert common(blocks((1,), 512, 256, seed=0), blocks((1,), 512, 256, seed=1)) < 5


def test_the_shared_part_is_common_to_a_group_and_the_rest_to_nobody() -> None:
    made = list(random_prompts(20, LengthRange(100), LengthRange(5), 256, shared=0.5, groups=1))
    assert all(len(prompt.token_ids) == 100 and prompt.output_tokens == 5 for prompt in made)
    for other in made[1:]:
        assert 50 <= common(made[0].token_ids, other.token_ids) < 56


def test_groups_have_prefixes_of_their_own() -> None:
    made = random_prompts(60, LengthRange(64), LengthRange(1), 256, shared=1.0, groups=3, seed=4)
    assert len({prompt.token_ids for prompt in made}) == 3


def test_lengths_spread_around_their_mean() -> None:
    rng = Random(2)
    drawn = [LengthRange(100, 0.5).draw(rng) for _ in range(3000)]
    assert (min(drawn), max(drawn)) == (50, 150)
    assert sum(drawn) / len(drawn) == pytest.approx(100, rel=0.03)
    assert LengthRange(1, 1.0).draw(rng) >= 1


@pytest.mark.parametrize("wrong", [{"shared": 1.1}, {"shared": -0.1}, {"groups": 0}])
def test_shares_and_groups_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="group"):
        list(random_prompts(1, LengthRange(1), LengthRange(1), 256, **wrong))
