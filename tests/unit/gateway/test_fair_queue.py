"""Order of waiting requests: keys by the tokens they got, requests of a key by priority."""

import asyncio
from collections import Counter
from random import Random

import pytest

from mamba_gateway.admission.fair_queue import FairQueue, WaitingRequest


class Line:
    """A queue and its requests by name."""

    def __init__(self, **weights: float) -> None:
        self.queue = FairQueue(lambda flow: weights.get(flow, 1.0))

    def add(self, flow: str, cost: float = 10, priority: int = 0, model: str | None = "m") -> WaitingRequest:
        turn = asyncio.get_running_loop().create_future()
        entry = WaitingRequest(flow, priority, cost, model, turn)
        self.queue.add(entry)
        return entry

    def served(self, count: int) -> str:
        """Return flows in the order of their turns."""
        return "".join(one.flow for _ in range(count) if (one := self.queue.pop(lambda _: True)))


async def test_who_came_late_does_not_wait_for_the_queue_of_another_key() -> None:
    line = Line()
    for _ in range(20):
        line.add("a")
    assert line.served(5) == "aaaaa"
    line.add("b")
    line.add("b")
    assert "b" in line.served(2)
    assert line.served(50).count("b") == 1


async def test_keys_share_by_tokens_and_not_by_requests() -> None:
    line = Line()
    for _ in range(100):
        line.add("a", cost=100)
        line.add("b", cost=10)
    turns = Counter(line.served(55))
    assert turns["b"] == pytest.approx(10 * turns["a"], abs=10)


async def test_keys_share_by_their_weights() -> None:
    line = Line(a=3.0)
    for _ in range(100):
        line.add("a")
        line.add("b")
    turns = Counter(line.served(80))
    assert (turns["a"], turns["b"]) == (60, 20)


async def test_an_idle_key_saves_nothing_up() -> None:
    line = Line()
    for _ in range(100):
        line.add("a")
    line.served(50)
    for _ in range(50):
        line.add("b")
    assert abs(line.served(20).count("b") - 10) <= 1


async def test_a_key_pays_for_what_its_request_really_took() -> None:
    line = Line()
    for _ in range(30):
        line.add("a")
        line.add("b")
    line.queue.charge("a", 100)
    assert line.served(10) == "b" * 10


async def test_the_priority_counts_within_a_key_alone() -> None:
    line = Line()
    late = [line.add("a", priority=1), line.add("a", priority=1)]
    first = line.add("a", priority=-5)
    other = line.add("b", priority=9)
    order = [line.queue.pop(lambda _: True) for _ in range(4)]
    assert order.index(first) < order.index(late[0]) < order.index(late[1])
    assert order.index(other) <= 1


async def test_who_has_no_engine_holds_up_nobody() -> None:
    line = Line()
    line.add("a", model="shut")
    open_one, other = line.add("a", model="open"), line.add("b", model="open")
    asked: list[str | None] = []

    def may_go(model: str | None) -> bool:
        asked.append(model)
        return model == "open"

    assert {line.queue.pop(may_go), line.queue.pop(may_go)} == {open_one, other}
    assert line.queue.pop(may_go) is None
    assert len(line.queue) == 1


async def test_who_makes_room_is_the_last_of_the_key_with_the_most() -> None:
    line = Line()
    line.add("b", priority=99)
    entries = [line.add("a", priority=priority) for priority in (0, 5, 3)]
    assert line.queue.last_of_longest_flow() is entries[1]


async def test_a_client_that_left_is_passed_over_before_it_is_taken_out() -> None:
    line = Line()
    gone, stays = line.add("a"), line.add("a")
    gone.turn.cancel()
    assert line.queue.pop(lambda _: True) is stays
    line.queue.remove(gone)
    assert (len(line.queue), line.queue.waiting()) == (0, {})


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_and_goes_each_is_served_once_or_left_and_nothing_stays(seed: int) -> None:
    rng, line = Random(seed), Line(a=2.0)
    inside: set[WaitingRequest] = set()
    for _ in range(800):
        move = rng.random()
        if move < 0.5:
            inside.add(line.add(rng.choice("abcd"), rng.uniform(1, 100), rng.randint(-2, 2)))
        elif move < 0.6 and inside:
            left = rng.choice(sorted(inside, key=id))
            inside.remove(left)
            line.queue.remove(left)
        elif (entry := line.queue.pop(lambda _: True)) is not None:
            inside.remove(entry)
            if rng.random() < 0.5:
                line.queue.charge(entry.flow, rng.uniform(-entry.cost, 100))
        assert len(line.queue) == len(inside) == sum(line.queue.waiting().values())
    assert len(line.served(1000)) == len(inside)
    assert len(line.queue) == 0


async def test_who_need_not_wait_pays_as_if_it_had_waited() -> None:
    waited, at_once = Line(a=2.0), Line(a=2.0)
    orders = []
    for number, flow in enumerate("abbaaacb", 1):
        waited.add(flow, cost=10 * number)
        assert waited.served(1) == flow
        at_once.queue.serve(flow, 10 * number)
    for line in (waited, at_once):
        for flow in "abc" * 20:
            line.add(flow)
        orders.append(line.served(60))
    assert orders[0] == orders[1]
    assert orders[0] != "abc" * 20
