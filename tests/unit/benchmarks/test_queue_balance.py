"""Evenness of queues: measured at the moments at which there are queues, and reported with their number."""

import pytest
from benchmarks.queue_balance import QueueBalance, over_windows, percentile, seconds_over_mean


def test_only_moments_with_enough_requests_count_and_their_share_is_told() -> None:
    found = QueueBalance.of([[4, 0, 0, 0], [6, 4, 3, 3], [9, 1, 1, 5]])
    assert found == QueueBalance(p50=2.25, p99=2.25, share=0.67, mean=4.0)
    assert QueueBalance.of([[6, 4, 3, 3]]) == QueueBalance(p50=1.5, p99=1.5, share=1.0, mean=4.0)


def test_without_such_a_moment_nothing_is_said() -> None:
    assert QueueBalance.of([[4, 0, 0, 0], [3, 4, 4, 4]]) is None
    assert QueueBalance.of([]) is None


def test_the_99th_percentile_leaves_one_moment_in_a_hundred_out() -> None:
    even, uneven = [5, 5, 5, 5], [17, 1, 1, 1]
    found = QueueBalance.of([uneven, *[even] * 199])
    assert found is not None
    assert (found.p99, found.share) == (1.0, 1.0)
    assert QueueBalance.of([uneven, *[even] * 99]).p99 == 3.4


def test_seconds_are_those_of_the_busiest_beyond_the_mean() -> None:
    assert seconds_over_mean([[1.0, 3.0], [2.0, 2.0]]) == 1.0
    assert seconds_over_mean([]) == 0.0


def test_a_percentile_of_nothing_is_no_number() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    with pytest.raises(IndexError):
        percentile([], 99)


def test_over_a_window_what_evens_out_is_even() -> None:
    turns = [[9, 1], [1, 9], [4, 4], [8, 0], [8, 0], [7, 7]]
    assert over_windows(turns, 2) == [[5, 5], [6, 2], [7.5, 3.5]]
    assert over_windows(turns, 4) == [[5.5, 3.5]]  # of what is left over no window is made
    assert over_windows(turns, 7) == []
