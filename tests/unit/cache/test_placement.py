"""Where a prompt leaves checkpoints."""

from hypothesis import given
from hypothesis import strategies as st

from mamba_planner.strategy import decode_spacing
from mamba_server.cache.placement import place


def test_the_second_identical_prompt_finds_a_checkpoint_one_page_before_its_end() -> None:
    assert place(17, 0, (0,), 0, 4, 8, 1).required == (16,)
    # A prompt that ends on a page cannot resume at its own length: one token has to be computed.
    assert place(16, 0, (0,), 0, 4, 8, 1).required == (12,)


def test_branch_and_turn_get_checkpoints_of_their_own() -> None:
    assert place(41, 0, (21,), 33, 4, 100, 4).required == (20, 32, 40)


def test_the_cap_keeps_the_end_before_the_turn_and_the_turn_before_the_branch() -> None:
    assert place(41, 0, (21,), 33, 4, 100, 1).required == (40,)
    assert place(41, 0, (21,), 33, 4, 100, 2).required == (32, 40)


def test_room_under_the_cap_is_spread_over_the_track_interval() -> None:
    assert place(101, 0, (0,), 0, 4, 8, 3).optional == (72, 96)
    assert place(17, 0, (0,), 0, 4, 8, 4).optional == (8,)


def recomputed_at_most(prompt: int, left_at: int, interval: int, cap: int) -> int:
    """Return the tokens recomputed before a prompt branches from another at `left_at`."""
    depths = [0, *place(prompt, 0, (), 0, 16, interval, cap).depths]
    return left_at - max(depth for depth in depths if depth <= left_at)


@given(st.integers(300, 60_000), st.floats(0, 1), st.integers(2, 6))
def test_a_prompt_that_leaves_another_anywhere_recomputes_in_proportion_to_what_is_new(
    prompt: int, where: float, cap: int
) -> None:
    interval = 256
    left_at = int(where * (prompt - 1))
    ratio = ((prompt - 1) // interval + 1) ** (1 / (cap - 1))
    new = prompt - left_at
    # One interval each for where the grid ends and for rounding to it.
    assert recomputed_at_most(prompt, left_at, interval, cap) <= ratio * (new + interval) + 2 * interval


def test_a_prompt_that_shares_all_but_the_last_question_recomputes_less_than_an_interval() -> None:
    assert recomputed_at_most(10_032, 10_000, 256, 4) == 16


def test_checkpoints_of_an_answer_begin_a_page_apart_and_double_up_to_the_track_interval() -> None:
    spacing = {outputs: decode_spacing(outputs, 16, 256) for outputs in (1, 64, 127, 128, 255, 256, 512)}
    assert spacing == {1: 16, 64: 16, 127: 16, 128: 32, 255: 32, 256: 64, 512: 128}
    assert decode_spacing(10**6, 16, 256) == 256
    assert decode_spacing(10**6, 16, 48) == 48


@given(st.integers(1, 100_000), st.sampled_from([1, 16, 64]), st.integers(1, 8))
def test_never_more_than_a_quarter_of_an_answer_lies_beyond_its_last_checkpoint(
    outputs: int, page: int, interval: int
) -> None:
    spacing = decode_spacing(outputs, page, page * interval)
    assert spacing % page == 0
    assert spacing <= max(page, outputs / 4)
    assert page <= spacing <= page * interval


def test_a_short_prompt_has_none() -> None:
    placement = place(4, 0, (0,), 0, 4, 8, 4)
    assert (placement.required, placement.optional) == ((), ())


@given(
    st.integers(1, 3000), st.integers(0, 60), st.integers(0, 3000), st.integers(0, 3000),
    st.sampled_from([1, 4, 16, 64]), st.integers(1, 8), st.integers(1, 6),
)  # fmt: skip
def test_depths_are_page_multiples_beyond_what_was_resumed_and_short_of_the_end(
    prompt: int, resumed_pages: int, kv_depth: int, turn: int, page: int, interval: int, cap: int
) -> None:
    resumed = min(resumed_pages * page, (prompt - 1) // page * page)
    placement = place(prompt, resumed, (kv_depth,), turn, page, page * interval, cap)
    depths = [*placement.required, *placement.optional]
    assert all(depth % page == 0 and resumed < depth <= prompt - 1 for depth in depths)
    assert len(set(depths)) == len(depths) <= cap
    assert list(placement.optional) == sorted(placement.optional)
    last = (prompt - 1) // page * page
    assert last == resumed or last in placement.required
