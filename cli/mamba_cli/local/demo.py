"""The demonstration: chats that share a long prefix, and how much of it was resumed instead of recomputed."""

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from mamba_cli.errors import RunFailed

FACTS = (
    ("lamp", "green"), ("key", "iron"), ("boat", "red"), ("anna", "paris"), ("castle", "stone"),
    ("bob", "tokyo"), ("piano", "black"), ("garden", "lemon"), ("drum", "wood"), ("kitchen", "cheese"),
    ("tower", "north"), ("emma", "rome"), ("flag", "yellow"), ("river", "silver"), ("hugo", "wolf"),
    ("ticket", "oslo"), ("mia", "cherry"), ("coin", "gold"), ("house", "white"), ("radio", "owl"),
    ("bridge", "glass"), ("leo", "tiger"), ("market", "bread"), ("ring", "brown"),
)  # fmt: skip
FILLER = (
    "The weather is fine today.",
    "It was a warm day and the sun was on the road.",
    "The people walked home in the rain.",
    "There is a long road and a hill.",
)
ASKED = ("ticket", "ring", "garden", "castle")
LONGEST_ANSWER = 24


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    question: str
    text: str
    prompt_tokens: int
    cached_tokens: int


def document() -> str:
    """The shared prefix: facts, with text between them."""
    lines = ["You are a helpful assistant.", "Facts:"]
    for index, (key, value) in enumerate(FACTS):
        lines.append(f"{key}: {value}")
        if index % 6 == 5:
            lines.append(FILLER[index // 6 % len(FILLER)])
    return "\n".join(lines)


def chats() -> list[tuple[str, list[dict[str, str]]]]:
    """(question, messages) of each request; all start with the same document."""
    system = {"role": "system", "content": document()}
    questions = [f"What is the {key}?" for key in ASKED]
    return [(question, [system, {"role": "user", "content": question}]) for question in questions]


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    question: str,
    messages: list[dict[str, str]],
    *,
    chat: bool = True,
) -> DemoAnswer:
    """One request; not `chat`: as plain text, for a model without a chat template.

    Raises `RunFailed` with what the server said.
    """
    asked: dict[str, Any] = {"messages": messages}
    if not chat:
        asked = {"prompt": "\n".join([*(each["content"] for each in messages), "Answer:"])}
    body = {"model": model, **asked, "max_tokens": LONGEST_ANSWER, "temperature": 0}
    try:
        async with session.post(
            f"{url}/v1/{'chat/' if chat else ''}completions",
            json=body,
            timeout=aiohttp.ClientTimeout(total=300),
        ) as response:
            text = await response.text()
            if response.status != 200:
                raise RunFailed(f"demo: {url} answered {response.status}: {text[:500]}")
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise RunFailed(f"demo: no answer from {url}: {error or type(error).__name__}") from error
    return read_answer(question, text)


def read_answer(question: str, received: str) -> DemoAnswer:
    """Raises `RunFailed` when the answer is not what the OpenAI API sends."""
    try:
        body: dict[str, Any] = json.loads(received)
        usage = body["usage"]
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return DemoAnswer(
            question=question,
            text=str(text or "").strip(),
            prompt_tokens=int(usage["prompt_tokens"]),
            cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RunFailed(f"demo: an answer that cannot be read: {received[:300]}") from error


def summary(answers: list[DemoAnswer]) -> str:
    """One sentence on what was saved."""
    prompt = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    share = cached / prompt if prompt else 0.0
    return (
        f"{cached:,} of {prompt:,} prompt tokens ({share:.0%}) were resumed from a checkpoint, not recomputed"
    )
