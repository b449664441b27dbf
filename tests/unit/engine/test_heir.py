"""An heir takes states of an ending peer that it lacks, has room for, and would compute for longer."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from mamba_cli.fleet.engine import cache_of
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_server.engine.stepping.prefill_speed import PrefillSpeed
from mamba_server.engine.transfers.bandwidth import Bandwidth
from mamba_server.engine.transfers.heir import MOST_AT_ONCE, Heir
from mamba_server.wire import Fetch
from mamba_transfer import Bequest, HotPrefix
from transfer_peers import LAYOUT

PAGE = LAYOUT.page_size
PROFILE = EngineProfile(
    name="test", origin="assumed", prefill_tokens_per_second=1000, step_seconds=0.01, sequence_seconds=0.001,
    max_running=4, slabs=40, tokens_per_state=8 * PAGE, page_tokens=PAGE,
)  # fmt: skip
Ended = Callable[[str], None]


class Speed(PrefillSpeed):
    """Speed of prompts that a test sets."""

    def __init__(self, tokens_per_second: float) -> None:
        super().__init__(0.0)
        self._work, self._seconds = tokens_per_second, 1.0


def prefix(first: int, pages: int = 4) -> HotPrefix:
    tokens = np.arange(first, first + pages * PAGE, dtype="<i4")
    return HotPrefix("", tokens.tobytes(), 1000)


class World:
    """An heir, and the fetches that it began."""

    def __init__(self, speed: float = 0.0) -> None:
        self.cache = cache_of(PROFILE, PAGE, 100 * PAGE, prefix_caching=True)
        self.now = 0.0
        self.heir = Heir(
            self.cache, LAYOUT, "decode", Speed(speed), Bandwidth(), step=lambda: 1, wake=self.wake,
            clock=lambda: self.now,
        )  # fmt: skip
        self.fetches: list[tuple[HotPrefix, Ended]] = []
        self.done: list[HotPrefix] = []
        """States that were fetched, by `asked`."""
        self.loop = threading.Event()

    def wake(self) -> None:
        self.loop.set()

    def poll(self) -> None:
        self.heir.poll(self._bring)

    def _bring(self, fetch: Fetch, prefix: HotPrefix, deadline: float, ended: Ended) -> None:
        assert (fetch.address, fetch.incarnation, fetch.depth) == ("10.0.0.1:8002", "life", prefix.depth)
        self.fetches.append((prefix, ended))

    def asked(self, question: Callable[[], int]) -> int:
        """Return the answer to a question of a server's thread, with the loop polling beside it."""
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(question()))
        thread.start()
        while thread.is_alive():
            self.poll()
            while self.fetches:
                self.done.append(self.fetches[0][0])
                self.fetches.pop(0)[1]("valid")
            thread.join(0.001)
        return answers[0]

    def inherited(self, *prefixes: HotPrefix) -> int:
        self.done = []
        return self.asked(lambda: self.heir.inherit(Bequest("10.0.0.1:8002", "life", prefixes, 30.0)))


def test_a_state_that_costs_more_to_compute_than_to_fetch_is_fetched() -> None:
    slow, fast = World(speed=100.0), World(speed=1e9)

    assert slow.inherited(prefix(0), prefix(1000)) == 2
    assert fast.inherited(prefix(0), prefix(1000)) == 0


def test_without_a_measured_speed_every_state_is_fetched() -> None:
    assert World().inherited(prefix(0)) == 1


def test_a_state_that_the_engine_has_is_not_fetched_again() -> None:
    world = World()
    tokens = np.frombuffer(prefix(0).token_ids, "<i4").astype(np.int32)
    reception = world.cache.receive(tokens, "")
    assert reception is not None
    world.cache.confirm(reception)
    world.cache.install(reception, 1)

    assert world.inherited(prefix(0), prefix(5000)) == 1
    assert world.done == [prefix(5000)]


def test_at_most_a_quarter_of_the_arena_is_taken_the_most_valuable_first() -> None:
    world = World()
    offered = [prefix(1000 * number) for number in range(30)]

    assert world.asked(lambda: world.heir.places("decode")) == 10
    assert world.inherited(*offered) == 10
    assert world.done == offered[:10]


def test_few_states_are_fetched_at_once_so_that_requests_have_places() -> None:
    world = World()
    bequest = Bequest("10.0.0.1:8002", "life", tuple(prefix(1000 * number) for number in range(9)), 30.0)
    thread = threading.Thread(target=lambda: world.heir.inherit(bequest))
    thread.start()
    world.loop.wait(10)
    world.poll()
    assert len(world.fetches) == MOST_AT_ONCE
    while thread.is_alive():
        while world.fetches:
            world.fetches.pop()[1]("lost")
        world.poll()
        thread.join(0.001)


@pytest.mark.parametrize("leaving", [False, True])
def test_an_engine_of_another_role_and_one_that_ends_itself_take_nothing(leaving: bool) -> None:
    world = World()
    world.heir.leaving = leaving

    assert world.heir.places("decode" if leaving else "prefill") == 0


def test_after_the_time_of_the_peer_no_fetch_begins() -> None:
    world = World()
    bequest = Bequest("10.0.0.1:8002", "life", (prefix(0),), 30.0)
    thread = threading.Thread(target=lambda: world.heir.inherit(bequest))
    thread.start()
    world.loop.wait(10)
    world.now = 31.0
    world.poll()
    thread.join(10)

    assert world.fetches == []
