"""Freshness against simulated watches: a working one is never called stale, a dead one always is, in time."""

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_operator.process.freshness import Freshness

STALE_AFTER = 90.0
RESYNC = 300.0


class World:
    """Objects that change at random, listed now and then, delivered `delay` seconds after each change."""

    def __init__(self, seed: int, delay: Callable[[float], float | None], objects: int = 3) -> None:
        self.freshness = Freshness(STALE_AFTER)
        self._random = random.Random(seed)
        self._delay = delay
        self._versions = dict.fromkeys(range(objects), 0)
        self._coming: list[tuple[float, int, str]] = []
        self.stale_at: list[float] = []

    def run(self, seconds: float, *, change_every: float) -> None:
        now, next_list, next_change = 0.0, 0.0, 0.0
        while now < seconds:
            if now >= next_change:
                self._change(now)
                next_change = now + self._random.expovariate(1 / change_every)
            self._deliver(now)
            if now >= next_list:
                for one, version in self._versions.items():
                    self.freshness.listed(one, str(version), now)
                next_list = now + self._random.uniform(0.8, 1.0) * RESYNC
            if self.freshness.stale():
                self.stale_at.append(now)
            now += 1.0

    def _change(self, now: float) -> None:
        one = self._random.randrange(len(self._versions))
        self._versions[one] += 1
        delay = self._delay(now)
        if delay is not None:
            self._coming.append((now + delay, one, str(self._versions[one])))

    def begin(self) -> None:
        """Deliver everything there is, as a watch does at its beginning."""
        for one, version in self._versions.items():
            self.freshness.delivered(one, str(version), 0.0)

    def _deliver(self, now: float) -> None:
        for when, one, version in [item for item in self._coming if item[0] <= now]:
            self.freshness.delivered(one, version, now)
            self._coming.remove((when, one, version))


@given(st.integers(0, 10**6), st.floats(0, STALE_AFTER / 2), st.floats(5, 2000))
@settings(max_examples=25, deadline=None)
def test_a_watch_that_lags_less_than_is_allowed_is_never_stale(
    seed: int, lag: float, change_every: float
) -> None:
    world = World(seed, lambda _: lag)
    world.begin()

    world.run(5000, change_every=change_every)

    assert world.stale_at == []


@given(st.integers(0, 10**6), st.floats(5, 100))
@settings(max_examples=25, deadline=None)
def test_a_watch_that_dies_is_found_out_within_three_looks(seed: int, change_every: float) -> None:
    world = World(seed, lambda now: 0.5 if now < 1000 else None)
    world.begin()

    world.run(4000, change_every=change_every)

    assert world.stale_at
    # The first change that is lost comes a little later than the death.
    assert 1000 < world.stale_at[0] < 1000 + 20 * change_every + 3 * RESYNC


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_a_watch_that_never_began_is_found_out_by_the_second_look(seed: int) -> None:
    world = World(seed, lambda _: None)

    world.run(1000, change_every=1e6)

    assert 0 < world.stale_at[0] <= RESYNC


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_a_watch_that_comes_back_is_fresh_again(seed: int) -> None:
    world = World(seed, lambda now: 0.5 if now < 500 or now > 2000 else None)
    world.begin()

    world.run(6000, change_every=20)

    assert world.stale_at
    assert max(world.stale_at) < 3000
