"""Memory of the ghost tree: remembered prompts, forgotten ones, and predicted returns."""

import numpy as np

from cache_bench import CacheBench, flush_and_sweep, ids
from mamba_server.cache.ghost_tree import GHOST_BYTES, CheckpointKind, Ghost, GhostTree
from mamba_server.cache.return_times import BINS, EDGES, PRIOR, HazardRatio, ReturnTimes

PAGE = 4


def test_it_says_where_a_prompt_parts_from_all_that_came_before() -> None:
    ghosts = GhostTree(PAGE)
    first, _ = ghosts.observe(ids(range(41)), "")
    assert first.shared == 0
    second, _ = ghosts.observe(ids(range(22), range(100, 120)), "")
    assert second.shared == 5
    assert [ghost.depth for ghost in second.path()] == [10, 5]


def test_the_last_token_is_never_resumed_so_it_makes_no_place() -> None:
    sighting, _ = GhostTree(PAGE).observe(ids(range(40)), "")
    assert sighting.tip.depth == 9


def test_another_salt_shares_nothing() -> None:
    ghosts = GhostTree(PAGE)
    ghosts.observe(ids(range(41)), "one")
    assert ghosts.observe(ids(range(41)), "two")[0].shared == 0
    assert ghosts.observe(ids(range(41)), "one")[0].shared == 10


def test_a_page_of_the_same_tokens_in_another_order_is_another_page() -> None:
    ghosts = GhostTree(PAGE)
    assert ghosts.hashes(ids(1, 2, 3, 4), "") != ghosts.hashes(ids(4, 3, 2, 1), "")
    assert ghosts.hashes(ids(1, 2, 3, 4, 5, 6, 7, 8), "")[8:] == ghosts.hashes(ids(5, 6, 7, 8), "")


def test_its_bytes_are_capped_and_the_oldest_is_forgotten_first() -> None:
    most = 20 * (GHOST_BYTES + 100)
    ghosts = GhostTree(PAGE, most)
    kept = ids(range(41))
    for number in range(300):
        ghosts.observe(kept, "")
        ghosts.observe(ids(range(1000 * number + 1000, 1000 * number + 1080)), "")
        assert ghosts.bytes <= most
        counted = sum(GHOST_BYTES + len(ghost.raw) for ghost in ghosts._recent.values())
        assert counted == ghosts.bytes
    assert ghosts.observe(kept, "")[0].shared == 10
    assert ghosts.observe(ids(range(1000, 1080)), "")[0].shared == 0


def test_one_request_uses_one_place_the_deepest_it_begins_with() -> None:
    ghosts = GhostTree(PAGE)
    one, _ = ghosts.observe(ids(range(41)), "")
    two, _ = ghosts.observe(ids(range(81)), "")
    three, _ = ghosts.observe(ids(range(121)), "")
    assert [ghost.uses for ghost in three.path()] == [0, 1, 1]
    assert (one.tip.turn, two.tip.turn, three.tip.turn) == (0, 1, 2)


def test_a_turn_that_ends_on_the_page_of_the_last_is_the_newest_end_still() -> None:
    ghosts = GhostTree(PAGE)
    tip = ghosts.observe(ids(range(42)), "")[0].tip
    assert ghosts.observe(ids(range(43)), "")[0].tip is tip
    assert (tip.uses, tip.turn) == (0, 1)


def test_a_place_can_be_marked_anywhere_on_the_path_and_nowhere_else() -> None:
    ghosts = GhostTree(PAGE)
    sighting, _ = ghosts.observe(ids(range(41)), "")
    guess = ghosts.ghost_at(sighting, 6, CheckpointKind.GRID, 2)
    assert guess is not None
    assert (guess.depth, guess.kind, guess.turn) == (6, CheckpointKind.GRID, 2)
    assert ghosts.ghost_at(sighting, 6, CheckpointKind.END) is guess
    assert ghosts.ghost_at(sighting, 11, CheckpointKind.END) is None
    assert [ghost.depth for ghost in sighting.path()] == [10, 6]


def test_an_answer_goes_on_from_its_prompt() -> None:
    ghosts = GhostTree(PAGE)
    sighting, _ = ghosts.observe(ids(range(41)), "")
    end = ghosts.observe_answer(sighting, ids(range(60)), "")
    assert end is not None
    assert (end.depth, end.parent) == (15, sighting.tip)
    assert ghosts.observe(ids(range(81)), "")[0].shared == 15


def test_ages_enter_each_bin_once_and_in_time() -> None:
    ghosts = GhostTree(PAGE)
    sighting, _ = ghosts.observe(ids(range(41)), "")
    tip = sighting.tip
    for number in range(1, 40):
        _, aged = ghosts.observe(ids(range(1000 * number, 1000 * number + 9)), "")
        assert (tip in aged) is (number in EDGES)
        assert EDGES[tip.age_bin] <= number < EDGES[tip.age_bin + 1]


def test_before_anything_is_known_the_older_promises_less() -> None:
    times = ReturnTimes(None)
    assert all(times.rate(at + 1) <= 1.001 * times.rate(at) for at in range(BINS - 1))
    assert times.rate(BINS - 1) < times.rate(0) / 1000
    assert 0 < PRIOR < 1


def test_what_returns_after_a_while_is_worth_most_just_before() -> None:
    times = ReturnTimes(None)
    soon = EDGES.index(64)
    for _ in range(400):
        for at in range(soon + 1):
            times.entered(at)
        times.returned(soon)
    for _ in range(40):
        for at in range(BINS):
            times.entered(at)
    assert times.rate(0) < times.rate(soon)
    assert times.rate(soon + 1) < times.rate(soon) / 20


def test_a_class_that_foretells_worse_than_the_wider_one_decides_nothing() -> None:
    wide = ReturnTimes(None)
    rng = np.random.default_rng(0)
    steady, fickle = ReturnTimes(wide), ReturnTimes(wide)
    for turn in range(400):
        for _ in range(40):
            steady.entered(0)
            if rng.random() < 0.5:
                steady.returned(0)
            fickle.entered(0)
            # What it did of late is always what it does no longer.
            if turn // 20 % 2:
                fickle.returned(0)
        for times in (steady, fickle):
            times._learn()
    assert steady.score > -1
    assert fickle.score < -1
    narrow, broad = fickle.rate(0), ReturnTimes(None)
    broad._entered, broad._returned = wide._entered, wide._returned
    assert abs(narrow - broad.rate(0)) < 0.05


def test_texts_of_a_length_that_returns_promise_more_than_those_of_one_that_does_not() -> None:
    ghosts = GhostTree(PAGE)
    for number in range(300):
        text = 10_000 * number
        ghosts.observe(ids(range(text, text + 8 * PAGE + 1)), "")
        ghosts.observe(ids(range(text + 5000, text + 5000 + 64 * PAGE + 1)), "")
        ghosts.observe(ids(range(text + 5000, text + 5000 + 65 * PAGE + 1)), "")
    short = ghosts.observe(ids(range(9_000_000, 9_000_000 + 8 * PAGE + 1)), "")[0].tip
    long = ghosts.observe(ids(range(9_500_000, 9_500_000 + 64 * PAGE + 1)), "")[0].tip
    # Their class knows no lengths.
    assert short.returns is long.returns
    assert long.rate > 3 * short.rate


def test_both_parts_of_a_split_text_are_of_its_whole_length() -> None:
    ghosts = GhostTree(PAGE)
    sighting, _ = ghosts.observe(ids(range(10 * PAGE + 1)), "")
    guess = ghosts.ghost_at(sighting, 3, CheckpointKind.GRID)
    assert guess is not None
    assert (guess.length, sighting.tip.length) == (10, 10)
    longer, _ = ghosts.observe(ids(range(13 * PAGE + 1)), "")
    assert longer.tip.length == 3


def test_a_place_that_was_used_is_known_by_its_own_record() -> None:
    ghosts = GhostTree(PAGE)
    tip = ghosts.observe(ids(range(10 * PAGE + 1)), "")[0].tip
    assert tip.excess is not None
    ghosts.observe(ids(range(12 * PAGE + 1)), "")
    assert tip.uses == 1
    assert tip.excess is None


def test_a_text_behind_a_busy_beginning_is_expected_back_more_than_one_behind_a_quiet_beginning() -> None:
    ghosts, fresh = GhostTree(PAGE), iter(range(1000, 1_000_000, 100))

    def ask(stem: int, times: int = 1) -> Ghost:
        first = next(fresh)
        text = ids(range(stem, stem + 8), range(first, first + 9))
        for _ in range(times):
            sighting, _ = ghosts.observe(text, "")
        return sighting.tip

    for number in range(640):
        # The busy one has fifteen requests in sixteen, and half of its texts are asked for again.
        ask(0 if number % 16 else 100, times=1 + (number % 16) % 2)
    busy = ask(0).rate
    assert busy > 2 * ask(100).rate


def test_what_returns_as_often_as_foretold_has_no_excess_and_two_outliers_make_little() -> None:
    usual, odd = HazardRatio(), HazardRatio()
    for number in range(5000):
        usual.entered(0.25)
        if number % 4 == 0:
            usual.returned()
    assert abs(usual.ratio - 1) < 0.05
    for _ in range(2):
        odd.entered(0.25)
        odd.returned()
    assert 1 < odd.ratio < 1.25


def test_a_prompt_whose_pages_are_gone_still_shows_where_the_next_one_parts() -> None:
    bench = CacheBench.make(slabs=16, policy="RecomputeCost", interval=1000)
    stem = range(24)
    bench.serve(ids(stem, range(100, 110)))
    flush_and_sweep(bench.cache)
    assert bench.cache.tree.nodes == 0
    bench.serve(ids(stem, range(200, 210)))
    allocation = bench.admit(ids(stem, range(300, 310)))
    assert allocation is not None
    assert allocation.resumed == 24


def test_forgotten_and_evicted_checkpoints_leave_no_ghost_that_names_them() -> None:
    bench = CacheBench.make(slabs=12, policy="RecomputeCost")
    ghosts = bench.cache.ghosts
    assert ghosts is not None
    for number in range(60):
        bench.serve(ids(range(100 * (number % 9), 100 * (number % 9) + 17 + number % 5)))
        cached = {id(node) for node in bench.cache.tree.walk() if node.slot}
        for ghost in ghosts._recent.values():
            assert ghost.node is None or id(ghost.node) in cached
            assert ghost.node is None or ghost.node.ghost is ghost
