"""A real engine of the shipped model scores a prompt to which nothing is added, however long."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from servers import Server, call

LENGTH = 512
"""Tokens of prompt and answer: of a multiple of pages and of none."""


@pytest.fixture(scope="module", params=[LENGTH, LENGTH - 5])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Server, int]]:
    arguments = ("--max-model-len", str(request.param), "--chunked-prefill-tokens", "256")
    with Server("builtin://tiny-recall", *arguments) as running:
        yield running, request.param


def prompt_of(length: int) -> list[int]:
    drawn = Random(length)
    return [drawn.randrange(3, 250) for _ in range(length)]


def score(server: Server, prompt: list[int], **fields: Any) -> tuple[int, Any]:
    body = {"model": server.model, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1, **fields}
    return call(f"{server.url}/v1/completions", body)


def test_a_prompt_as_long_as_the_model_allows_is_scored_whole(server: tuple[Server, int]) -> None:
    running, length = server
    prompt = prompt_of(length)
    # Half of it first, so that there is something to resume, which a score does without.
    status, answer = score(running, prompt[: length // 2])
    assert status == 200, answer
    half = answer["choices"][0]["logprobs"]["token_logprobs"]
    status, answer = score(running, prompt, prompt_logprobs=0, return_token_ids=True)
    assert status == 200, answer
    choice = answer["choices"][0]
    scores = choice["logprobs"]["token_logprobs"]
    assert (len(scores), scores[0], choice["finish_reason"]) == (length, None, "length")
    assert all(each is not None and each < 0 for each in scores[1:])
    assert scores[1 : len(half)] == pytest.approx(half[1:], abs=1e-3)
    assert len(choice["prompt_logprobs"]) == length
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (prompt, [])
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (length, 0)


def test_scores_that_come_in_pieces_are_those_that_come_at_once(server: tuple[Server, int]) -> None:
    running, length = server
    prompt = prompt_of(length)
    # With 20 alternatives they are too many for one message of the engine.
    few, many = (score(running, prompt, logprobs=each)[1]["choices"][0]["logprobs"] for each in (1, 20))
    assert len(many["tokens"]) == length
    assert (many["tokens"], many["text_offset"]) == (few["tokens"], few["text_offset"])
    assert many["token_logprobs"][1:] == pytest.approx(few["token_logprobs"][1:], abs=1e-3)
    assert all(
        one.items() <= other.items()
        for one, other in zip(
            [dict.fromkeys(each, 0) for each in few["top_logprobs"][1:]],
            [dict.fromkeys(each, 0) for each in many["top_logprobs"][1:]],
            strict=True,
        )
    )


def test_each_of_several_choices_is_scored(server: tuple[Server, int]) -> None:
    running, length = server
    prompt = prompt_of(length)
    alone = score(running, prompt)[1]["choices"][0]["logprobs"]["token_logprobs"]
    status, answer = score(running, prompt, n=2)
    assert status == 200, answer
    found = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
    assert found == [pytest.approx(alone, abs=1e-3)] * 2
    # The second one did not compute the prompt again.
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_one_token_more_than_the_model_allows_is_refused(server: tuple[Server, int]) -> None:
    running, length = server
    too_long = score(running, prompt_of(length + 1))
    too_many = score(running, prompt_of(length), max_tokens=1)
    assert [status for status, _ in (too_long, too_many)] == [400, 400]
    assert {answer["error"]["code"] for _, answer in (too_long, too_many)} == {"context_length_exceeded"}


def test_afterwards_nothing_is_held_and_what_was_scored_serves_other_prompts(
    server: tuple[Server, int],
) -> None:
    running, length = server
    prompt = [*reversed(prompt_of(length))]
    assert score(running, prompt)[0] == 200
    running.wait_until_empty()
    answer = {"model": running.model, "prompt": prompt[:-4], "max_tokens": 4, "ignore_eos": True}
    status, told = call(f"{running.url}/v1/completions", answer)
    assert (status, told["usage"]["completion_tokens"]) == (200, 4)
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] > length // 2
