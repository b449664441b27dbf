"""Where a prompt leaves checkpoints."""

from hypothesis import given
from hypothesis import strategies as st

from mamba_server.cache.placement import place


def test_the_second_identical_prompt_finds_a_checkpoint_one_page_before_its_end() -> None:
    assert place(17, 0, 0, 0, 4, 8, 1).required == (16,)
    # A prompt that ends on a page cannot resume at its own length: one token has to be computed.
    assert place(16, 0, 0, 0, 4, 8, 1).required == (12,)


def test_branch_and_turn_get_checkpoints_of_their_own() -> None:
    assert place(41, 0, 21, 33, 4, 100, 4).required == (20, 32, 40)


def test_the_cap_keeps_the_end_before_the_turn_and_the_turn_before_the_branch() -> None:
    assert place(41, 0, 21, 33, 4, 100, 1).required == (40,)
    assert place(41, 0, 21, 33, 4, 100, 2).required == (32, 40)


def test_room_under_the_cap_is_spread_over_the_track_interval() -> None:
    assert place(101, 0, 0, 0, 4, 8, 3).optional == (40, 72)
    assert place(17, 0, 0, 0, 4, 8, 4).optional == (8,)


def test_a_short_prompt_has_none() -> None:
    placement = place(4, 0, 0, 0, 4, 8, 4)
    assert (placement.required, placement.optional) == ((), ())


@given(
    st.integers(1, 3000), st.integers(0, 60), st.integers(0, 3000), st.integers(0, 3000),
    st.sampled_from([1, 4, 16, 64]), st.integers(1, 8), st.integers(1, 6),
)  # fmt: skip
def test_depths_are_page_multiples_beyond_what_was_resumed_and_short_of_the_end(
    prompt: int, resumed_pages: int, kv_depth: int, turn: int, page: int, interval: int, cap: int
) -> None:
    resumed = min(resumed_pages * page, (prompt - 1) // page * page)
    placement = place(prompt, resumed, kv_depth, turn, page, page * interval, cap)
    depths = [*placement.required, *placement.optional]
    assert all(depth % page == 0 and resumed < depth <= prompt - 1 for depth in depths)
    assert len(set(depths)) == len(depths) <= cap
    last = (prompt - 1) // page * page
    assert last == resumed or last in placement.required
