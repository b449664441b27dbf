"""Prompts that one gateway sent are resumed by requests through the other.

Real processes and a real Redis, each of them restarted once.
"""

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from eventually import wait_until
from redis_server import RedisServer
from servers import Command, Server, call

pytestmark = [pytest.mark.redis, pytest.mark.slow]
PAGE = 16
MODEL = "tiny-recall"


class Gateway(Command):
    """`mambaserve gateway` before some engines, ready."""

    def __init__(self, engines: list[Server], redis: RedisServer, port: int = 0) -> None:
        backends = [word for engine in engines for word in ("--backend", engine.url)]
        super().__init__(
            "gateway", *backends, "--redis-url", redis.url, "--prefix-index-scope", MODEL, "--port", str(port)
        )
        self.url = self.wait_for(r"gateway ready at (http://\S+)")[1]
        wait_until(lambda: call(f"{self.url}/readyz")[0] == 200)

    def entries(self) -> int:
        """Return the number of known checkpoints."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        name = "mambaserve_prefix_index_entries"
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(name)))


def resumed(gateway: Gateway, prompts: list[list[int]]) -> int:
    """Count the prompts that are resumed up to the page of their last token."""
    whole = 0
    for prompt in prompts:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        status, answer = call(f"{gateway.url}/v1/completions", body)
        assert status == 200, answer
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        whole += cached == (len(prompt) - 1) // PAGE * PAGE
    return whole


@pytest.fixture
def engines(redis_server: RedisServer) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        arena = ("--arena-bytes", "64Mi", "--redis-url", redis_server.url)
        yield [stack.enter_context(Server(f"builtin://{MODEL}", *arena)) for _ in range(2)]


def test_a_prompt_is_resumed_through_either_gateway_also_after_gateway_and_redis_began_anew(
    engines: list[Server], redis_server: RedisServer
) -> None:
    rng = Random(0)
    prompts = [[rng.randrange(5, 250) for _ in range(rng.randrange(40, 120))] for _ in range(12)]
    with ExitStack() as stack:
        first, second = (stack.enter_context(Gateway(engines, redis_server)) for _ in range(2))

        def both_know() -> bool:
            made = sum(engine.ledger()["checkpoints"] for engine in engines)
            return first.entries() == second.entries() == made

        assert resumed(first, prompts) == 0
        wait_until(both_know)
        assert resumed(second, prompts) == len(prompts)

        second.close()
        second = stack.enter_context(Gateway(engines, redis_server))
        wait_until(both_know)
        assert resumed(second, prompts) == len(prompts)

        redis_server.stop()
        assert resumed(first, prompts) == len(prompts)
        redis_server.start()
        third = stack.enter_context(Gateway(engines, redis_server))
        wait_until(lambda: both_know() and third.entries() == first.entries())
        assert resumed(third, prompts) == len(prompts)
