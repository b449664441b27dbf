"""Recently sent prefixes: followers find them at once, their number is bounded, and they expire."""

import pytest

from mamba_gateway.prompt_prefix import DEPTHS, HOME_TOKENS, PromptPrefix
from mamba_gateway.routing.router import MAX_ENGINES_OF_PREFIX, RecentPrefixes


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


STEM = list(range(1, 1001))


def test_a_prompt_that_goes_on_from_another_finds_where_that_went() -> None:
    recent = RecentPrefixes(Clock())
    recent.note(PromptPrefix.of([*STEM, 7]), "a")
    recent.note(PromptPrefix.of(STEM[:200]), "b")
    followed = recent.resumable(PromptPrefix.of([*STEM, *range(5000, 6000)]), 60)
    assert followed == {"a": 960, "b": 192}
    assert recent.resumable(PromptPrefix.of(STEM[:63]), 60) == {}
    assert recent.resumable(PromptPrefix.of([9, *STEM]), 60) == {}


def test_prompts_of_another_salt_share_nothing() -> None:
    recent = RecentPrefixes(Clock())
    recent.note(PromptPrefix.of(STEM, "alice"), "a")
    assert recent.resumable(PromptPrefix.of(STEM, "bob"), 60) == {}
    assert recent.resumable(PromptPrefix.of(STEM, "alice"), 60) == {"a": 960}


def test_knowledge_expires_unless_it_is_used_again() -> None:
    clock = Clock()
    recent, prompt = RecentPrefixes(clock), PromptPrefix.of(STEM)
    recent.note(prompt, "a")
    clock.now += 50
    recent.note(PromptPrefix.of(STEM[:300]), "a")
    clock.now += 20
    assert recent.resumable(prompt, 60) == {"a": 256}
    clock.now += 50
    assert recent.resumable(prompt, 60) == {}


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    recent = RecentPrefixes(Clock(), most=100)
    for number in range(50):
        recent.note(PromptPrefix.of([number, *STEM]), "a")
    assert len(recent) == 100
    assert recent.resumable(PromptPrefix.of([0, *STEM]), 60) == {}
    assert recent.resumable(PromptPrefix.of([49, *STEM]), 60) == {"a": 960}
    for number in range(10):
        recent.note(PromptPrefix.of(STEM), f"e{number}")
    assert list(recent.resumable(PromptPrefix.of(STEM), 60)) == [
        f"e{n}" for n in range(10 - MAX_ENGINES_OF_PREFIX, 10)
    ]


@pytest.mark.parametrize("tokens", [0, 63, 64, 127, 128, 5000, 300_000])
def test_a_prompt_of_any_length_has_a_bounded_number_of_prefixes(tokens: int) -> None:
    prompt = PromptPrefix.of([1] * tokens)
    assert [depth for depth, _ in prompt.digests] == [depth for depth in DEPTHS if depth <= tokens]
    assert len(DEPTHS) < 120
    assert (prompt.home is not None) == (tokens >= HOME_TOKENS)


def test_prompts_of_the_same_beginning_have_one_home_and_others_another() -> None:
    one = PromptPrefix.of(STEM).home
    assert one == PromptPrefix.of([*STEM[:HOME_TOKENS], 5, 6, 7]).home
    assert one != PromptPrefix.of([*STEM[: HOME_TOKENS - 1], 5, 6, 7]).home
