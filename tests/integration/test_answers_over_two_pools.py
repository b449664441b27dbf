"""A gateway before engines of two pools, as processes: what a client sees, also when engines die."""

import asyncio
import itertools
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

import mamba_server
from eventually import wait_until
from matrix_size import LARGE
from servers import Command, Server, call

pytestmark = pytest.mark.slow

assert mamba_server.__file__ is not None
MODEL = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
NAME, TOKENS = "tiny-recall", 24
REQUESTS, AT_ONCE = (200, 12) if LARGE else (48, 6)
TO_THE_END = {"ignore_eos": True}
WORDS = " ".join(f"word{number}" for number in range(40))


def started(stack: ExitStack, role: str) -> Server:
    """Start an engine of one role, whose answers do not depend on other requests."""
    moves = () if role == "unified" else ("--role", role, "--transfer-port", "0")
    return stack.enter_context(
        Server(MODEL, *moves, "--seed", "1", "--arena-bytes", "32Mi", "--batch-invariant")
    )


class Fleet:
    """A prefill engine, two decode engines, and a gateway before them."""

    def __init__(self, stack: ExitStack) -> None:
        self.prefill, self.decode, self.spare = (
            started(stack, role) for role in ("prefill", "decode", "decode")
        )
        backends = [f"--backend={engine.url}" for engine in (self.prefill, self.decode, self.spare)]
        self.gateway = stack.enter_context(
            Command("gateway", "--port", "0", "--hand-over-tokens", "64", "--silence-timeout", "5", *backends)
        )
        self.url = self.gateway.wait_for(r"gateway ready at (http://\S+)")[1]
        wait_until(self.is_ready, "all engines to be ready at the gateway")

    def is_ready(self) -> bool:
        """Return whether the gateway may choose all engines, and knows what they have cached."""
        status, body = call(f"{self.url}/readyz")
        return status == 200 and body["endpoints"]["ready"] == 3

    def count(self, name: str) -> float:
        """Return the sum of a series of the gateway over the given beginning of its name."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


@pytest.fixture(scope="module")
def unified() -> Iterator[Server]:
    with ExitStack() as stack:
        yield started(stack, "unified")


def prompt(number: int) -> str:
    return f"{number} {WORDS} {number * 7}"


@dataclass
class Outcome:
    """Answer that a client got for one prompt, or the error that ended it."""

    number: int
    tokens: list[str] = field(default_factory=list)
    chunks: int = 0
    error: str = ""


async def stream(client: openai.AsyncOpenAI, number: int) -> Outcome:
    """Stream one greedy answer."""
    outcome = Outcome(number)
    try:
        async for chunk in await client.completions.create(
            model=NAME, prompt=prompt(number), max_tokens=TOKENS, temperature=0, logprobs=0,
            extra_body=TO_THE_END, stream=True,
        ):  # fmt: skip
            outcome.chunks += 1
            for choice in chunk.choices:
                outcome.tokens += (choice.logprobs and choice.logprobs.tokens) or []
    except openai.APIError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def whole(client: openai.AsyncOpenAI, *numbers: int) -> list[list[str]]:
    """Return the tokens of greedy answers that are not streamed, asked for in one request."""
    answer = await client.completions.create(
        model=NAME, prompt=[prompt(number) for number in numbers], max_tokens=TOKENS, temperature=0,
        logprobs=0, extra_body=TO_THE_END,
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == list(range(len(numbers)))
    return [(choice.logprobs and choice.logprobs.tokens) or [] for choice in answer.choices]


def test_a_stream_over_two_engines_is_that_of_one(fleet: Fleet, unified: Server) -> None:
    async def ask() -> tuple[Outcome, list[str]]:
        async with fleet.client() as client:
            one = await stream(client, 1000)
            chat = await client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": prompt(1001)}], max_tokens=8, temperature=0
            )
        async with openai.AsyncOpenAI(base_url=f"{unified.url}/v1", api_key="none") as client:
            (expected,) = await whole(client, 1000)
            same = await client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": prompt(1001)}], max_tokens=8, temperature=0
            )
        assert chat.usage is not None
        assert chat.usage.prompt_tokens_details is not None
        assert chat.usage.prompt_tokens_details.cached_tokens
        assert chat.choices[0].message.content == same.choices[0].message.content
        return one, expected

    one, expected = asyncio.run(ask())
    assert (one.error, one.tokens) == ("", expected)
    assert len(one.tokens) == TOKENS
    assert one.chunks > 3
    assert fleet.count('mambaserve_gateway_hand_overs_total{outcome="computed"}') == 2
    assert fleet.count("mambaserve_gateway_prefilled_by_decode_total") == 0


def test_an_engine_fetches_from_another_one_that_has_more_of_the_prompt(fleet: Fleet) -> None:
    before = fleet.count("mambaserve_gateway_peer_hints_total")
    numbers = itertools.count(2000)

    def answered_by_a_peer() -> bool:
        # Each time another prompt: one that reaches the gateway before the news of the prefill engine does is
        # handed over, and the decode engine has it itself from then on.
        number = next(numbers)
        options = {"model": NAME, "max_tokens": 2, "temperature": 0}
        first = call(f"{fleet.prefill.url}/v1/completions", {**options, "prompt": prompt(number)})[1]
        assert first["usage"]["prompt_tokens"] > 64
        time.sleep(min(0.2 * (number - 1999), 2.0))
        longer = {**options, "prompt": f"{prompt(number)} more"}
        usage = call(f"{fleet.url}/v1/completions", longer)[1]["usage"]
        hints = fleet.count("mambaserve_gateway_peer_hints_total") - before
        return bool(hints) and usage["prompt_tokens_details"]["cached_tokens"] >= 64

    wait_until(answered_by_a_peer, "a hint and its use")


def test_engines_that_are_killed_cost_no_answer_that_had_not_begun(fleet: Fleet, unified: Server) -> None:
    async def ask_all() -> tuple[list[Outcome], list[list[str]]]:
        places, done = asyncio.Semaphore(AT_ONCE), 0

        async def one(client: openai.AsyncOpenAI, number: int) -> Outcome:
            nonlocal done
            async with places:
                outcome = await asyncio.wait_for(stream(client, number), 120)
            done += 1
            if done in (REQUESTS // 4, REQUESTS // 2):
                victim = fleet.prefill if done == REQUESTS // 4 else fleet.decode
                os.killpg(victim.process.pid, signal.SIGKILL)
            return outcome

        async with fleet.client() as client:
            outcomes = await asyncio.gather(*(one(client, number) for number in range(REQUESTS)))
        async with openai.AsyncOpenAI(base_url=f"{unified.url}/v1", api_key="none") as client:
            expected = await whole(client, *range(REQUESTS))
        return outcomes, expected

    handed_over = fleet.count('mambaserve_gateway_hand_overs_total{outcome="computed"}')
    outcomes, expected = asyncio.run(ask_all())
    assert [one.error for one in outcomes if one.error and not one.tokens] == []
    failed = [one for one in outcomes if one.error]
    assert [one.number for one in outcomes if not one.error and one.tokens != expected[one.number]] == []
    assert [one for one in failed if one.tokens != expected[one.number][: len(one.tokens)]] == []
    assert len(failed) <= AT_ONCE
    assert (
        fleet.count('mambaserve_gateway_hand_overs_total{outcome="computed"}') - handed_over >= REQUESTS // 10
    )
    assert fleet.count("mambaserve_gateway_prefilled_by_decode_total") >= REQUESTS // 10
    assert fleet.count("mambaserve_gateway_in_flight ") == 0
    wait_until(lambda: call(f"{fleet.spare.admin}/admin/ledger")[1]["slots_receiving"] == 0, "no reception")
