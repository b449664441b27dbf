"""Log-probabilities of long prompts in streams: nothing that is done with them at once holds up the rest."""

import json
import threading
from typing import Any

import pytest

from asgi import ask
from eventually import until
from mamba_server.wire import TokenLogprobs
from scripted_engine import Api, ids_of

JSON = [("Content-Type", "application/json")]
LENGTH = 4000
ALTERNATIVES = 20
BODIES = {
    "/v1/completions": {"prompt": "one two"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


def scores() -> list[TokenLogprobs | None]:
    token = ids_of("a")[0]
    one = TokenLogprobs(token, -1.5, tuple(range(10, 10 + ALTERNATIVES)), (-2.25,) * ALTERNATIVES, 3)
    return [None, *[one] * (LENGTH - 1)]


async def begun(api: Api, path: str) -> Any:
    fields = {"stream": True, "max_tokens": 4, "prompt_logprobs": ALTERNATIVES}
    asked = ask(api.app, "POST", path, {**BODIES[path], **fields}, headers=JSON)
    await until(lambda: api.engine.has_requests(1))
    return asked


@pytest.mark.parametrize("path", BODIES)
async def test_the_first_event_of_a_long_prompt_s_scores_is_written_in_pieces(path: str) -> None:
    api = Api()
    asked = await begun(api, path)
    whole = scores()
    api.engine.delta([], prompt_logprobs=whole[:1000])
    api.engine.delta("x", prompt_logprobs=whole[1000:])
    api.engine.delta("y", finish_reason="length")
    await asked.done()
    parts = [each["body"] for each in asked.messages if each["type"] == "http.response.body"]
    assert max(map(len, parts)) < 2**20 < sum(map(len, parts))
    events = [json.loads(each[6:]) for each in b"".join(parts).split(b"\n\n")[:-2]]
    first = events[0] if "prompt_logprobs" in events[0] else events[0]["choices"][0]
    assert len(first["prompt_logprobs"]) == LENGTH
    assert len(first["prompt_logprobs"][-1]) == ALTERNATIVES + 1
    assert sum("prompt_logprobs" in str(each) for each in events) == 1


class Entry:
    """In the place of one token's log-probabilities: says which thread freed it."""

    freed: list[threading.Thread]

    def __init__(self, freed: list[threading.Thread]) -> None:
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append(threading.current_thread())


async def test_scores_of_a_client_that_left_are_freed_by_another_thread() -> None:
    api = Api()
    asked = await begun(api, "/v1/completions")
    freed: list[threading.Thread] = []
    for _ in range(2):
        api.engine.delta([], prompt_logprobs=[Entry(freed) for _ in range(1000)])
    await until(lambda: not api.engine.client._inboxes[api.engine.requests[0].request_id]._waiting)
    await asked.leave().done()
    await until(lambda: len(freed) == 2000)
    assert threading.main_thread() not in freed
