"""Where a resume begins, as a client sees it over HTTP: cached tokens for every shape of prompt."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gate_cases import LARGE, STRATEGIES
from servers import Server, call

PAGE = 16
LENGTHS = range(2 * PAGE, 20 * PAGE + 2)


@pytest.fixture(scope="module", params=STRATEGIES if LARGE else ["ExtraBufferLazy"])
def server(request: pytest.FixtureRequest, random_model: Path) -> Iterator[Server]:
    options = ["--strategy", request.param, "--arena-bytes", "128Mi", "--page-size", str(PAGE)]
    with Server(random_model, *options) as running:
        yield running


def complete(server: Server, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    status, answer = call(f"{server.url}/v1/completions", {**body, **fields})
    assert status == 200, answer
    return answer


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def lengths() -> list[int]:
    """Return all depths in the large run; else every multiple with its neighbours, and some between."""
    if LARGE:
        return list(LENGTHS)
    near = {pages * PAGE + d for pages in (2, 5, 17) for d in (-1, 0, 1)}
    return sorted(length for length in near | {40, 91, 200} if length in LENGTHS)


def test_the_second_identical_prompt_resumes_all_but_the_last_page(server: Server) -> None:
    rng = random.Random(4)
    for length in lengths():
        prompt = [rng.randrange(256) for _ in range(length)]
        first, second = complete(server, prompt), complete(server, prompt)
        assert cached(first) == 0, length
        assert cached(second) == (length - 1) // PAGE * PAGE, length
        assert second["choices"][0]["text"] == first["choices"][0]["text"], length


@pytest.mark.parametrize("words", [3, 12, 40] if LARGE else [12])
def test_the_second_turn_resumes_to_the_end_of_the_first_ones_prompt(server: Server, words: int) -> None:
    text = f"{words}: " + " ".join(f"word{index}" for index in range(words))
    messages = [{"role": "user", "content": text}]
    body = {"model": server.model, "max_tokens": 20, "temperature": 0, "ignore_eos": True}

    def chat() -> dict[str, Any]:
        status, answer = call(f"{server.url}/v1/chat/completions", {**body, "messages": messages})
        assert status == 200, answer
        return answer

    first = chat()
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "And now?"}]
    prompt = first["usage"]["prompt_tokens"]
    assert cached(chat()) >= (prompt - 1) // PAGE * PAGE


def test_the_second_of_three_branches_resumes_at_the_branch_point(server: Server) -> None:
    rng = random.Random(9)
    stem = [77] * 257
    found = [cached(complete(server, stem + [rng.randrange(256) for _ in range(100)])) for _ in range(3)]
    assert found == [0, 256, 256]


def test_requests_that_come_together_compute_their_prefix_once(server: Server) -> None:
    rng = random.Random(11)
    stem = [rng.randrange(256) for _ in range(1500)]
    prompts = [[*stem, *(rng.randrange(256) for _ in range(20))] for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda prompt: complete(server, prompt), prompts))
    resumed = sorted(cached(answer) for answer in together)
    # The first computes all of it. Who came before it was under way may be a checkpoint short of the branch.
    assert resumed[0] == 0
    assert resumed[1] >= 1000
    alone = [complete(server, prompt)["choices"][0]["text"] for prompt in prompts]
    assert [answer["choices"][0]["text"] for answer in together] == alone
