"""The demonstration of `up --demo`: chats that share a long prefix, and how much of it was resumed."""

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
QUESTION_KEYS = ("ticket", "ring", "garden", "castle")
MAX_ANSWER_TOKENS = 24


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """Holds what the model answered to one question of the demonstration, with its token counts."""

    question: str
    text: str
    prompt_tokens: int
    cached_tokens: int


def document() -> str:
    """Return the shared prefix: facts with filler text between them."""
    lines = ["You are a helpful assistant.", "Facts:"]
    for index, (key, value) in enumerate(FACTS):
        lines.append(f"{key}: {value}")
        if index % 6 == 5:
            lines.append(FILLER[index // 6 % len(FILLER)])
    return "\n".join(lines)


def chats() -> list[tuple[str, list[dict[str, str]]]]:
    """Return (question, messages) of each request; all requests begin with the same document."""
    system = {"role": "system", "content": document()}
    questions = [f"What is the {key}?" for key in QUESTION_KEYS]
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
    """Send one request; without `chat`, as plain text for a model without a chat template.

    Raises `RunFailed` with the server's message.
    """
    conversation: dict[str, Any] = {"messages": messages}
    if not chat:
        conversation = {"prompt": "\n".join([*(message["content"] for message in messages), "Answer:"])}
    body = {"model": model, **conversation, "max_tokens": MAX_ANSWER_TOKENS, "temperature": 0}
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
    """Read the body of an answer. Raises `RunFailed` when it is not one of the OpenAI API."""
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
        raise RunFailed(
            f"demo: the endpoint sent an answer that is not one of the OpenAI API: {received[:300]}"
        ) from error


def summary(answers: list[DemoAnswer]) -> str:
    """Return one sentence on the prompt tokens that were resumed."""
    prompt = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    share = cached / prompt if prompt else 0.0
    return (
        f"{cached:,} of {prompt:,} prompt tokens ({share:.0%}) were resumed from a checkpoint instead of "
        "computed again"
    )
