"""One request while it generates: whatever ends it, the engine is told once and each sequence counts once."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_edge.errors import InternalError, NotReady
from mamba_server import wire
from mamba_server.api.answers.active_request import ActiveRequest, ChoiceUpdate
from mamba_server.api.requests.errors import EngineLost, EngineRefused
from mamba_text.sequence_text import TextVisibility
from scripted_engine import TOKENIZER, Api, ids_of


def active(api: Api, *prompts: str, n: int = 1, stops: tuple[str, ...] = (), **params: Any) -> ActiveRequest:
    sampling = wire.SamplingParams(max_tokens=64, **params)
    requests = [
        wire.AddRequest(f"r{place}", ids_of(prompt), sampling, n=n)
        for place, prompt in enumerate(prompts or ("prompt",))
    ]
    return ActiveRequest(
        api.engine.client,
        api.serving.text.tokenizer,
        requests,
        TextVisibility(stops),
        api.serving.metrics,  # type: ignore[union-attr]
    )


async def drained(run: ActiveRequest) -> list[ChoiceUpdate]:
    return [update async for update in run.updates()]


async def served(run: ActiveRequest, *story: Callable[[], None]) -> list[ChoiceUpdate]:
    """Return the updates of the run while the events happen."""
    async with run:
        for happens in story:
            happens()
        return await drained(run)


def assert_left_nothing(api: Api) -> None:
    assert (api.engine.client.open, api.engine.client.waiting) == (0, 0)


async def test_an_answer_that_ends_by_itself_is_not_aborted() -> None:
    api = Api()
    async with active(api) as run:
        api.engine.delta("one two", cached_tokens=3)
        api.engine.delta(" three", finish_reason="length")
        updates = await drained(run)
    assert "".join(update.text for update in updates) == "one two three"
    assert updates[-1].finish_reason == "length"
    assert (run.counts.completion, run.counts.cached_total) == (len(ids_of("one two three")), 3)
    assert api.engine.aborted == []
    assert api.finished() == {"length": 1}
    assert_left_nothing(api)


async def test_leaving_aborts_what_runs_and_not_what_has_finished() -> None:
    api = Api()
    async with active(api, "a", "b", "c", n=2) as run:
        for index in range(2):
            api.engine.delta("x", of=1, index=index, finish_reason="length")
        api.engine.delta("x", of=0, index=1, finish_reason="stop")
        await anext(aiter(run.updates()))
    assert sorted(api.engine.aborted) == ["r0", "r2"]
    assert sum(api.finished().values()) == 6
    assert_left_nothing(api)


async def test_each_answer_of_each_prompt_has_a_place_of_its_own() -> None:
    api = Api()
    story = [
        partial(api.engine.delta, f"{of}{index}", of=of, index=index, finish_reason="length")
        for of in range(2)
        for index in range(2)
    ]
    updates = await served(active(api, "a", "b", n=2), *story)
    assert {update.choice: update.text for update in updates} == {0: "00", 1: "01", 2: "10", 3: "11"}


async def test_cancelling_counts_every_open_sequence_as_aborted() -> None:
    api = Api()

    async def serve() -> None:
        async with active(api, "a", "b", n=3) as run:
            await drained(run)

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    api.engine.delta("x", of=0, index=0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.finished() == {"abort": 6}
    assert sorted(api.engine.aborted) == ["r0", "r1"]
    assert_left_nothing(api)


async def test_a_failure_of_one_sequence_fails_the_request_and_aborts_the_others() -> None:
    api = Api()
    failing = partial(api.engine.delta, [], of=0, index=1, finish_reason="error")
    with pytest.raises(InternalError, match="engine failed"):
        await served(active(api, "a", "b", n=2), partial(api.engine.delta, "x", of=1), failing)
    assert api.finished() == {"error": 4}
    assert sorted(api.engine.aborted) == ["r0", "r1"]
    assert_left_nothing(api)


async def test_the_engines_own_words_on_what_went_wrong_reach_the_client() -> None:
    api = Api()
    failing = partial(api.engine.delta, [], of=0, finish_reason="error", error="NaN: use --dtype float32")
    with pytest.raises(InternalError, match="NaN: use --dtype float32"):
        await served(active(api, "a"), failing)


async def test_when_the_engine_is_lost_nothing_is_sent_to_the_next_one() -> None:
    api = Api()
    with pytest.raises(EngineLost, match="signal 9") as caught:
        await served(active(api, "a", "b"), partial(api.engine.delta, "x"), api.engine.dies)
    assert caught.value.headers() == {"retry-after": "2"}
    assert api.engine.aborted == []
    assert api.finished() == {"error": 2}
    assert_left_nothing(api)


async def test_what_came_before_the_engine_was_lost_is_handed_out_first() -> None:
    api = Api()
    async with active(api) as run:
        api.engine.delta("kept")
        api.engine.dies()
        updates = aiter(run.updates())
        assert (await anext(updates)).text == "kept"
        with pytest.raises(EngineLost):
            await anext(updates)


async def test_one_prompt_refused_aborts_the_others() -> None:
    api = Api()
    with pytest.raises(EngineRefused, match="the engine's words"):
        await served(active(api, "a", "b", "c"), partial(api.engine.rejects, 429, "full", of=1))
    assert sorted(api.engine.aborted) == ["r0", "r2"]
    assert api.finished() == {"error": 3}
    assert_left_nothing(api)


async def test_a_request_that_comes_too_early_is_not_counted() -> None:
    api = Api(ready=False)
    with pytest.raises(NotReady):
        async with active(api):
            raise AssertionError
    assert api.finished() == {}
    assert api.count("mambaserve_prompt_tokens_total", model="tiny") == 0
    assert api.engine.process.sent == []


async def test_a_stop_string_tells_the_engine_once_and_what_comes_late_changes_nothing() -> None:
    api = Api()
    async with active(api, stops=("two",)) as run:
        api.engine.delta("one two three")
        [update] = await drained(run)
        api.engine.delta(" four", finish_reason="length")
    kept = len(ids_of("one two"))
    assert api.engine.messages(wire.StopSequence) == [wire.StopSequence("r0", 0, kept)]
    assert (update.text, update.finish_reason, len(update.token_ids)) == ("one ", "stop", kept)
    assert run.counts.completion == kept
    assert api.finished() == {"stop": 1}
    assert api.engine.aborted == []
    assert_left_nothing(api)


async def test_a_stop_string_in_the_last_tokens_needs_no_word_to_the_engine() -> None:
    api = Api()
    async with active(api, stops=("two",)) as run:
        api.engine.delta("one two", finish_reason="length")
        [update] = await drained(run)
    assert (update.text, update.finish_reason) == ("one ", "stop")
    assert api.engine.messages(wire.StopSequence) == []


async def test_one_choice_that_stopped_does_not_stop_the_other() -> None:
    api = Api()
    async with active(api, n=2, stops=("!",)) as run:
        updates = aiter(run.updates())
        api.engine.delta("a!b", index=0)
        assert (await anext(updates)).finish_reason == "stop"
        api.engine.delta("late", index=0)
        api.engine.delta("other", index=1, finish_reason="length")
        rest = [update async for update in updates]
    assert [(update.choice, update.text, update.first) for update in rest] == [(1, "other", True)]
    assert [message.index for message in api.engine.messages(wire.StopSequence)] == [0]
    assert api.finished() == {"stop": 1, "length": 1}
    assert_left_nothing(api)


async def test_log_probabilities_end_with_the_tokens_that_count() -> None:
    api = Api()
    ids = ids_of("a!b")
    entries = [wire.TokenLogprobs(token, -1.0, [], []) for token in ids]
    async with active(api, stops=("!",)) as run:
        api.engine.delta(ids, logprobs=entries)
        [update] = await drained(run)
    assert update.logprobs == entries[:2]
    assert update.token_ids == ids[:2]


async def test_cached_tokens_are_those_of_each_prompt_once_however_often_told() -> None:
    api = Api()
    async with active(api, "a", "b", n=2) as run:
        for of, cached in ((0, 4), (1, 7)):
            for index in range(2):
                api.engine.delta("x", of=of, index=index, cached_tokens=cached)
                api.engine.delta("y", of=of, index=index, finish_reason="length")
        await drained(run)
    assert run.counts.cached_total == 11
    assert api.count("mambaserve_cached_tokens_total", model="tiny") == 11


async def test_a_choice_the_request_does_not_have_is_ignored() -> None:
    api = Api()
    async with active(api) as run:
        api.engine.delta("x", index=5, finish_reason="error")
        api.engine.delta("fine", finish_reason="length")
        assert [update.text for update in await drained(run)] == ["fine"]


pieces = st.lists(st.lists(st.integers(5, 300), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(pieces, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30),
    st.lists(st.sampled_from(["length", "stop"]), min_size=4, max_size=4),
)
def test_however_tokens_arrive_every_sequence_and_token_is_counted_once(
    choices: list[list[list[int]]], order: list[tuple[int, bool]], reasons: list[Any]
) -> None:
    async def run_one() -> None:
        api = Api()
        left = [list(parts) for parts in choices]
        got: list[list[int]] = [[] for _ in choices]
        ends: list[Any] = [None] * len(choices)

        def say(choice: int) -> None:
            part = left[choice].pop(0)
            last = reasons[choice] if not left[choice] else None
            api.engine.delta(part, index=choice, finish_reason=last)

        async with active(api, n=len(choices)) as run:

            async def read() -> None:
                async for update in run.updates():
                    got[update.choice] += update.token_ids
                    ends[update.choice] = update.finish_reason or ends[update.choice]

            reader = asyncio.create_task(read())
            rest = [(choice, False) for choice in range(len(choices)) for _ in choices[choice]]
            for choice, pause in [*order, *rest]:
                if choice < len(choices) and left[choice]:
                    say(choice)
                    if pause:
                        await asyncio.sleep(0)
            await reader
        tokens = sum(len(part) for parts in choices for part in parts)
        assert got == [[token for part in parts for token in part] for parts in choices]
        assert ends == reasons[: len(choices)]
        assert run.counts.completion == tokens
        assert api.count("mambaserve_generated_tokens_total", model="tiny") == tokens
        assert sum(api.finished().values()) == len(choices)
        assert api.count("mambaserve_time_to_first_token_seconds_count", model="tiny") == len(choices)
        assert api.count("mambaserve_request_duration_seconds_count", model="tiny") == len(choices)
        assert api.count("mambaserve_request_generated_tokens_sum", model="tiny") == tokens
        assert api.engine.aborted == []
        assert_left_nothing(api)

    asyncio.run(run_one())


def sums(api: Api) -> dict[str, float]:
    names = ("queue", "prefill", "decode", "duration")
    made = {name: api.count(f"mambaserve_request_{name}_seconds_sum", model="tiny") for name in names}
    made["ttft"] = api.count("mambaserve_time_to_first_token_seconds_sum", model="tiny")
    made["itl"] = api.count("mambaserve_inter_token_latency_seconds_sum", model="tiny")
    return {name: round(value, 6) for name, value in made.items()}


@pytest.mark.parametrize("slow", [False, True], ids=["reads at once", "reads late"])
async def test_times_are_those_of_the_engine_from_the_arrival_on_however_the_client_reads(slow: bool) -> None:
    api = Api()
    requests = [wire.AddRequest("r0", wire.TokenIds([5]), wire.SamplingParams(max_tokens=9), arrival=100.0)]
    run = ActiveRequest(api.engine.client, TOKENIZER, requests, TextVisibility(), api.serving.metrics)
    async with run:
        updates = aiter(run.updates())
        api.engine.delta([70], at=103.0, started=101.0, first_at=103.0)
        if not slow:
            await anext(updates)
        api.engine.delta([71], at=104.0)
        if not slow:
            await anext(updates)
        api.engine.delta([72], at=106.0, finish_reason="length")
        async for _ in updates:
            pass
    assert sums(api) == {"queue": 1, "prefill": 2, "decode": 3, "duration": 6, "ttft": 3, "itl": 3}
    assert api.count("mambaserve_request_max_generated_tokens_sum", model="tiny") == 3
    assert api.count("mambaserve_inter_token_latency_seconds_count", model="tiny") == 2


async def test_a_prompt_that_is_only_scored_waited_and_was_computed_and_had_no_first_token() -> None:
    api = Api()
    requests = [wire.AddRequest("r0", wire.TokenIds([5]), wire.SamplingParams(max_tokens=0), arrival=100.0)]
    run = ActiveRequest(api.engine.client, TOKENIZER, requests, TextVisibility(), api.serving.metrics)
    async with run:
        api.engine.delta([], at=103.0, started=101.0, first_at=103.0, finish_reason="length")
        assert [update.finish_reason for update in await drained(run)] == ["length"]
    assert sums(api) == {"queue": 1, "prefill": 2, "decode": 0, "duration": 3, "ttft": 0, "itl": 0}
    assert api.count("mambaserve_time_to_first_token_seconds_count", model="tiny") == 0
    assert run.counts.completion == 0
