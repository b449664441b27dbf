"""When a state is fetched and when its prompt is computed."""

import pytest

from mamba_server.engine.transfers.bandwidth import FIRST_GUESS, Bandwidth


def test_a_transfer_waits_behind_those_that_have_begun() -> None:
    bandwidth = Bandwidth()
    alone = bandwidth.seconds("disk", 1000)
    assert alone == pytest.approx(1000 / FIRST_GUESS["disk"])
    bandwidth.waiting_bytes = 9000
    assert bandwidth.seconds("disk", 1000) == pytest.approx(10 * alone)


def test_the_estimate_follows_what_transfers_took_and_each_source_has_its_own() -> None:
    bandwidth = Bandwidth()
    for _ in range(200):
        bandwidth.observe("disk", 1_000_000, 0.1)
    assert bandwidth.seconds("disk", 10_000_000) == pytest.approx(1.0, rel=0.01)
    assert bandwidth.seconds("memory", 10_000_000) == pytest.approx(10_000_000 / FIRST_GUESS["memory"])


def test_small_transfers_say_little_of_large_ones() -> None:
    bandwidth = Bandwidth()
    before = bandwidth.seconds("peer", 1 << 30)
    for _ in range(10):
        bandwidth.observe("peer", 30_000, 0.0005)
    assert bandwidth.seconds("peer", 1 << 30) < 2 * before


def test_a_transfer_pays_if_it_comes_sooner_than_its_tokens_are_computed() -> None:
    bandwidth = Bandwidth()
    gigabyte = int(FIRST_GUESS["peer"])
    assert bandwidth.pays("peer", gigabyte, work=1100, speed=1000)
    assert not bandwidth.pays("peer", gigabyte, work=900, speed=1000)
    # Nobody knows the speed yet.
    assert bandwidth.pays("peer", gigabyte, work=900, speed=0)
    # What waits before it delays it.
    bandwidth.waiting_bytes = gigabyte
    assert not bandwidth.pays("peer", gigabyte, work=1100, speed=1000)
    assert bandwidth.pays("peer", 1000, work=1, speed=1000, least=2.0)


def test_a_transfer_that_took_no_time_is_no_infinity() -> None:
    bandwidth = Bandwidth()
    bandwidth.observe("memory", 0, 0.0)
    bandwidth.observe("memory", 10, 0.0)
    assert 0 < bandwidth.seconds("memory", 10) < 1
