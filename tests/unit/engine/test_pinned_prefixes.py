"""Pins of clients: their time, their renewal, and the budget of each client."""

from typing import cast

import numpy as np

from cache_bench import CacheBench, ids
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.stepping.pinned_prefixes import PinnedPrefixes
from mamba_server.wire import SamplingParams


class Client:
    """Client that pins the ends of prompts; the arena has 32 slabs of four pages."""

    def __init__(self, share: float = 1.0) -> None:
        self.bench = CacheBench.make(slabs=33)
        self.pins = PinnedPrefixes(self.bench.cache, share)

    def pin(self, first: int, seconds: float, now: float, *, name: str = "somebody") -> None:
        tokens = ids(range(first, first + 17))
        self.bench.serve(tokens)
        sequence = Sequence(
            "r", 0, cast("np.ndarray", tokens), SamplingParams(1), order=0, client=name, pins=((16, seconds),)
        )
        self.pins.hold(sequence, self.bench.step + 1, now)

    @property
    def held(self) -> int:
        return self.bench.cache.capacity.pinned


def test_a_pin_ends_with_its_time() -> None:
    client = Client()
    client.pin(100, 300.0, now=0.0)
    client.pin(200, 60.0, now=0.0)
    client.pins.expire(59.0)
    assert client.held == 2
    client.pins.expire(60.0)
    assert client.held == 1
    client.pins.expire(300.0)
    assert client.held == 0
    assert client.pins.counts == {"pinned": 2, "expired": 2}


def test_a_pin_that_is_renewed_lasts_from_then_on_and_never_shorter() -> None:
    client = Client()
    client.pin(100, 300.0, now=0.0)
    client.pin(100, 300.0, now=200.0)
    client.pin(100, 60.0, now=210.0)
    client.pins.expire(499.0)
    assert client.held == 1
    client.pins.expire(500.0)
    assert client.held == 0


def test_beyond_the_budget_the_oldest_pin_of_that_client_ends_first() -> None:
    # A pin takes two slabs: its state and four pages.
    client = Client(share=0.125)
    client.pin(100, 600.0, now=0.0, name="other")
    client.pin(200, 600.0, now=1.0)
    client.pin(300, 600.0, now=2.0)
    client.pin(200, 600.0, now=3.0)
    assert client.held == 3
    client.pin(400, 600.0, now=4.0)
    assert client.held == 3
    assert client.pins.counts["over_budget"] == 1
    nodes = [pin.node for pin in client.bench.cache.tree.pins.values()]
    firsts = {int(node.path()[0].token_ids[0]) for node in nodes if node is not None}
    assert firsts == {100, 200, 400}


def test_a_pin_whose_checkpoint_is_gone_counts_nothing_and_ends_quietly() -> None:
    client = Client(share=0.0625)
    client.pin(100, 60.0, now=0.0)
    client.bench.cache.flush()
    client.pin(200, 600.0, now=1.0)
    assert (client.held, client.pins.counts["over_budget"]) == (1, 0)
    client.pins.expire(60.0)
    assert client.pins.counts["expired"] == 0


def test_without_a_share_nothing_is_pinned() -> None:
    client = Client(share=0.0)
    client.pin(100, 60.0, now=0.0)
    assert client.held == 0
