"""Asks questions with the official `openai` client until SIGTERM, and prints what became of each.

Runs in a pod of its own, started as `python stream_traffic.py URL MODEL STREAMS RATE TOKENS` with the key of
the client in OPENAI_API_KEY; changes nothing about the client except that it never asks twice. With TOKENS
other than 0 no answer is streamed and each has so many: work for engines, and little for the client. With
SALTED in the environment no request can resume what another one left in a cache. One line
of JSON for each request, times in seconds of the epoch: `begin`, `first` (piece of the answer), `end`,
whether `streamed`, and `error`, null for a right answer.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

SAMPLES = Path(__file__).parents[2] / "server/mamba_server/builtin/tiny-recall/samples.json"
TIMEOUT = 180.0
LONG_EVERY = 8
"""One request in so many goes on for LONG_TOKENS, and so is under way for longer than the others."""
LONG_TOKENS = 200
WHOLE_EVERY = 10
"""One in so many is not streamed: its connection is used again, where the client leaves that of a stream."""
WORDS = 200


def questions() -> list[tuple[list[dict[str, str]], str]]:
    """Return conversations with their answers: some share a long document, some are short."""
    samples = json.loads(SAMPLES.read_text())
    about = [
        ([{"role": "user", "content": f"{samples['document']}\n{one['question']}"}], str(one["answer"]))
        for one in samples["questions"]
    ]
    return about + [(one["messages"], str(one["answer"])) for one in samples["chats"]]


async def answer(
    client: AsyncOpenAI, model: str, messages: Any, right: str, fields: dict[str, Any], *, long: bool
) -> float | None:
    """Return the time of the first piece. Raises the client's errors, AssertionError for a wrong answer."""
    more: dict[str, Any] = {"max_tokens": 32, "extra_body": fields}
    if long:  # beyond its answer the model says what it likes, to the last token that it was asked for
        more = {"max_tokens": LONG_TOKENS, "extra_body": {**fields, "ignore_eos": True}}
    stream = await client.chat.completions.create(
        model=model, messages=messages, temperature=0, stream=True,
        stream_options={"include_usage": True}, **more,
    )  # fmt: skip
    first, text, why, tokens = None, "", None, 0
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.time()
                text += choice.delta.content
            why = choice.finish_reason or why
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    if long:
        assert text.startswith(right), f"said {text[:WORDS]!r} in place of {right!r}"
        assert (why, tokens) == ("length", LONG_TOKENS), f"ended by {why!r} after {tokens} tokens"
    else:
        assert (text, why) == (right, "stop"), f"said {text[:WORDS]!r} in place of {right!r}, {why!r}"
    return first


async def whole_answer(
    client: AsyncOpenAI, model: str, messages: Any, right: str, fields: dict[str, Any], tokens: int = 0
) -> float:
    """Return the time of the answer of `tokens` tokens; 0 = up to its end. Raises as `answer` does."""
    more = {**fields, "ignore_eos": True} if tokens else fields
    completion = await client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=tokens or 32, extra_body=more
    )
    text = completion.choices[0].message.content or ""
    assert text.startswith(right) if tokens else text == right, f"said {text[:WORDS]!r} in place of {right!r}"
    return time.time()


async def work(
    client: AsyncOpenAI, model: str, numbers: Iterator[int], period: float, over: asyncio.Event, tokens: int
) -> None:
    """Send one request after the other, `period` apart, or later if an answer takes longer."""
    asked_questions = questions()
    while not over.is_set():
        number = next(numbers)
        messages, right = asked_questions[number % len(asked_questions)]
        salt = {"cache_salt": f"request {number}"} if os.environ.get("SALTED") else {}
        begin, first, error = time.time(), None, None
        streamed = not tokens and number % WHOLE_EVERY != 1
        try:
            if streamed:
                long = number % LONG_EVERY == 0
                first = await answer(client, model, messages, right, salt, long=long)
            else:
                first = await whole_answer(client, model, messages, right, salt, tokens)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure} {failure.__cause__ or ''}".strip()[: 2 * WORDS]
        end = time.time()
        result = {"begin": begin, "first": first, "end": end, "streamed": streamed, "error": error}
        print(json.dumps(result), flush=True)
        await asyncio.sleep(max(0.0, begin + period - end))


async def main(url: str, model: str, streams: int, rate: float, tokens: int = 0) -> None:
    """Run the traffic. `rate`: requests in a second, all streams together, at most."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    numbers = itertools.count()
    async with AsyncOpenAI(base_url=url, timeout=TIMEOUT, max_retries=0) as client:
        each = (work(client, model, numbers, streams / rate, over, tokens) for _ in range(streams))
        await asyncio.gather(*each)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *map(int, sys.argv[5:])))
