"""Garbage of requests: no object outlives its answer, and none waits for the collector."""

import asyncio

import pytest

from asgi import ask
from living_objects import ObjectRounds
from mamba_server import wire
from scripted_engine import Api, ids_of

JSON = [("Content-Type", "application/json")]
ECHO = {"prompt": "one two three", "max_tokens": 2, "echo": True, "logprobs": 2}
CHAT = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 2, "stream": True, "logprobs": True, "top_logprobs": 2,
}  # fmt: skip


def scored(token: int) -> wire.TokenLogprobs:
    return wire.TokenLogprobs(token, -0.5, [token, token + 1], [-0.5, -1.5])


class Answering:
    """An engine that answers everything with two tokens and their log-probabilities."""

    def __init__(self) -> None:
        self.api = Api(waiting=100)
        self.api.engine.process.react = self._react

    def _react(self, message: wire.ToEngine) -> None:
        self.api.engine.process.sent.clear()
        if isinstance(message, wire.AddRequest):
            asyncio.get_running_loop().call_soon(self._answer, message)

    def _answer(self, message: wire.AddRequest) -> None:
        prompt = [None, *(scored(int(token)) for token in list(message.token_ids)[1:])]
        for number, token in enumerate(ids_of("hi")[:2]):
            delta = wire.SequenceDelta(
                message.request_id, 0, [token], logprobs=[scored(token)],
                finish_reason="length" if number else None,
                prompt_logprobs=None if number or message.params.prompt_logprobs < 0 else prompt,
            )  # fmt: skip
            self.api.engine.send(wire.Outputs([delta]))

    async def serve(self, path: str, body: dict[str, object], count: int) -> None:
        for _ in range(count):
            asked = await ask(self.api.app, "POST", path, body, headers=JSON).done()
            assert asked.status == 200
            assert b"logprobs" in asked.body


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", ECHO), ("/v1/chat/completions", CHAT)], ids=["echo", "chat"]
)
async def test_answers_with_log_probabilities_leave_no_objects(path: str, body: dict[str, object]) -> None:
    engine = Answering()
    rounds = ObjectRounds()
    for count in (10, 100, 100, 100):
        await engine.serve(path, body, count)
        rounds.end()
    assert rounds.growth < 20
