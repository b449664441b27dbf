"""A gateway that has just begun is ready once it knows what its engines can resume, or has waited enough."""

from dataclasses import dataclass

import pytest

from mamba_gateway.api.local_routes import WARM_UP_SECONDS, WarmUp
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_prefix.prefix_index import PrefixIndex, State


@dataclass
class Beginning:
    """A gateway's first seconds."""

    now: float = 0.0
    all_queried: bool = False

    def __post_init__(self) -> None:
        self.pool, self.index = Pool(clock=lambda: self.now), PrefixIndex()
        self.pool.set_targets([Target("http://a", "a")])
        self.warm_up = WarmUp(self.pool, self.index, self, lambda: self.now)  # type: ignore[arg-type]

    def engine_ready(self) -> None:
        self.pool.report("http://a", ProbeReport(ready=True))


def test_what_stands_in_for_the_tokenizers_has_their_surface() -> None:
    assert isinstance(TextProcessors.all_queried, property)


@pytest.mark.parametrize("state", ["following", "stale", "off"])
def test_it_waits_for_tokenizers_and_index_and_then_never_again(state: State) -> None:
    gateway = Beginning()
    gateway.engine_ready()
    assert "tokenizers" in gateway.warm_up.missing()
    gateway.all_queried = True
    assert "index" in gateway.warm_up.missing()
    gateway.index.state = state
    assert gateway.warm_up.missing() == ""
    gateway.index.state = "unavailable"
    assert gateway.warm_up.missing() == ""


def test_it_does_not_wait_for_ever() -> None:
    gateway = Beginning()
    gateway.engine_ready()
    gateway.now = WARM_UP_SECONDS - 0.1
    assert gateway.warm_up.missing()
    gateway.now = WARM_UP_SECONDS
    assert gateway.warm_up.missing() == ""


def test_without_an_engine_there_is_nothing_to_wait_for() -> None:
    assert Beginning().warm_up.missing() == ""


def test_a_gateway_that_does_not_go_by_prefixes_waits_for_nothing() -> None:
    gateway = Beginning()
    gateway.engine_ready()
    assert WarmUp(gateway.pool, gateway.index, None, lambda: 0.0).missing() == ""
