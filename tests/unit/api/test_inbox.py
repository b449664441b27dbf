"""Deltas that wait for a slow client: nothing is lost, and memory does not grow with their number."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_edge.errors import InternalError
from mamba_server.api.engine_link.inbox import Inbox, join
from mamba_server.api.requests.errors import EngineLost
from mamba_server.wire import PrefixExplanation, SequenceDelta, TokenLogprobs


def delta(*token_ids: int, index: int = 0, **more: object) -> SequenceDelta:
    return SequenceDelta("r", index, list(token_ids), **more)  # type: ignore[arg-type]


async def test_deltas_of_one_sequence_that_pile_up_are_one() -> None:
    inbox = Inbox()
    for token in range(1000):
        inbox.put(delta(token))
    taken = await inbox.take()
    assert len(taken) == 1
    assert taken[0].token_ids == list(range(1000))


async def test_an_explanation_is_not_lost_when_the_answer_piles_up_behind_it() -> None:
    inbox, explanation = Inbox(), PrefixExplanation(16, 20, "parted", (1, 2))
    inbox.put(delta(1, explanation=explanation))
    inbox.put(delta(2, finish_reason="length"))
    assert (await inbox.take())[0].explanation == explanation


async def test_sequences_are_kept_apart_and_in_order_of_arrival() -> None:
    inbox = Inbox()
    for token, index in ((1, 1), (2, 0), (3, 1)):
        inbox.put(delta(token, index=index))
    assert [(item.index, item.token_ids) for item in await inbox.take()] == [(1, [1, 3]), (0, [2])]


async def test_take_waits_for_the_first_delta() -> None:
    inbox = Inbox()
    task = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not task.done()
    inbox.put(delta(5))
    assert [item.token_ids for item in await task] == [[5]]


async def test_an_error_comes_after_what_was_there_before_it() -> None:
    inbox = Inbox()
    inbox.put(delta(1))
    inbox.fail(EngineLost("gone"))
    assert (await inbox.take())[0].token_ids == [1]
    for _ in range(2):
        with pytest.raises(EngineLost):
            await inbox.take()


async def test_the_first_error_stays() -> None:
    inbox = Inbox()
    inbox.fail(EngineLost("first"))
    inbox.fail(InternalError("second"))
    with pytest.raises(EngineLost, match="first"):
        await inbox.take()


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=8))
def test_joined_deltas_say_what_they_said_apart(parts: list[list[int]]) -> None:
    deltas = [delta(*part, logprobs=[TokenLogprobs(token, -1.0, [], []) for token in part]) for part in parts]
    whole = deltas[0]
    for part in deltas[1:]:
        whole = join(whole, part)
    assert whole.token_ids == [token for part in parts for token in part]
    assert [entry.token_id for entry in whole.logprobs or []] == whole.token_ids


def test_what_only_the_first_delta_says_survives_joining() -> None:
    first = delta(1, cached_tokens=64, prompt_logprobs=[None])
    last = delta(2, finish_reason="stop", stop_token_id=2)
    both = join(first, last)
    assert (both.cached_tokens, both.prompt_logprobs) == (64, [None])
    assert (both.finish_reason, both.stop_token_id) == ("stop", 2)
