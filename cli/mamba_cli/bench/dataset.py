"""Datasets of conversations: ShareGPT's JSON, or JSON lines of messages, as requests of the chat API. Pure.

Called by `bench dataset`. A dataset gives texts, the lengths of answers and, where recorded, arrival times; a
trace (`traces`) gives lengths only.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from mamba_cli.bench.prompts import LoadPrompt, shared_tokens

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
         "assistant": "assistant", "system": "system", "developer": "developer", "tool": "tool"}  # fmt: skip
"""Roles of the chat API by the names that datasets use."""
BYTES_PER_TOKEN = 4.0
"""Bytes of English text that one token of a large vocabulary stands for, about."""
UNEXPLAINED_SHARE = 0.1
"""Share of the prompt tokens above which cached tokens that the dataset does not explain are reported."""
Message = dict[str, Any]


class DatasetError(ValueError):
    """A dataset that cannot be read. The message names the record and the expected form."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One record of a dataset: its messages, and its arrival in seconds where the dataset has times."""

    messages: tuple[Message, ...]
    timestamp: float | None = None
    output_tokens: int | None = None
    """Length of the last answer as recorded; None = estimated from its text."""


@dataclass(frozen=True, slots=True)
class AnswerLength:
    """Rule for the number of tokens to ask for, given the answer that the dataset records."""

    bytes_per_token: float = BYTES_PER_TOKEN
    unanswered: int = 128
    """Tokens for a message without a recorded answer."""
    longest: int | None = None

    def tokens(self, answer: Message | None, recorded: int | None) -> int:
        """Return the number of tokens to generate, at least 1."""
        if recorded is not None:
            length = recorded
        elif answer is None:
            length = self.unanswered
        else:
            length = math.ceil(len(_text(answer).encode()) / self.bytes_per_token)
        return max(1, min(length, self.longest or length))


def parse(text: str) -> list[Conversation]:
    """Return the conversations in a JSON array or JSON lines; records without a user's message are left out.

    Raises `DatasetError` for a record of another form, without a usable record, and if only some have times.
    """
    conversations = [_conversation(record, place) for place, record in _records(text)]
    usable = [each for each in conversations if any(one["role"] == "user" for one in each.messages)]
    if not usable:
        raise DatasetError("no record has a message of a user")
    timed = sum(each.timestamp is not None for each in usable)
    if 0 < timed < len(usable):
        raise DatasetError(f"{timed} of {len(usable)} records have a timestamp: give one to all or to none")
    return usable


def requests(
    conversations: list[Conversation], length: AnswerLength, *, speed: float = 1.0
) -> list[LoadPrompt]:
    """Return the requests in the order in which they are sent.

    With times, a record is one request for its last answer, at its time divided by `speed`. Without, each
    answer is a request: first the first answers of all conversations, then the second ones, so that a later
    turn follows the earlier one whose prefix it repeats.
    """
    if conversations[0].timestamp is None:
        rounds = zip_longest(*(_turns(each, length) for each in conversations))
        return [prompt for turn in rounds for prompt in turn if prompt is not None]
    ordered = sorted(conversations, key=lambda each: each.timestamp or 0.0)
    begin = ordered[0].timestamp or 0.0
    last = [(each, [*_turns(each, length)][-1]) for each in ordered]
    return [
        LoadPrompt((), prompt.output_tokens, ((each.timestamp or 0.0) - begin) / speed, prompt.messages)
        for each, prompt in last
    ]


def _turns(conversation: Conversation, length: AnswerLength) -> Iterator[LoadPrompt]:
    # One prompt for each answer that follows a user's or a tool's message, with all messages before it.
    messages = conversation.messages
    for place, message in enumerate(messages):
        final = place == len(messages) - 1
        following = None if final else messages[place + 1]
        if message["role"] not in ("user", "tool") or (following and following["role"] != "assistant"):
            continue
        answers_end = final or place + 2 == len(messages)
        recorded = conversation.output_tokens if answers_end else None
        yield LoadPrompt((), length.tokens(following, recorded), messages=messages[: place + 1])


def _records(text: str) -> Iterable[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        try:
            return [(f"record {number}", each) for number, each in enumerate(json.loads(text), start=1)]
        except ValueError as error:
            raise DatasetError(f"not JSON: {error}") from error
    return [
        (f"line {number}", _line(line, number))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _line(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DatasetError(f"line {number}: not JSON: {error}") from error


def _conversation(record: Any, place: str) -> Conversation:
    turns = (record.get("messages") or record.get("conversations")) if isinstance(record, dict) else record
    if not isinstance(turns, list):
        raise DatasetError(
            f'{place}: expected an object with "messages", or with "conversations" as in ShareGPT'
        )
    messages = [_message(turn, place) for turn in turns]
    # ShareGPT has conversations that begin in the middle, which chat templates refuse.
    while messages and messages[0]["role"] in ("assistant", "tool"):
        messages.pop(0)
    while messages and messages[-1]["role"] == "system":
        messages.pop()
    fields = record if isinstance(record, dict) else {}
    output = fields.get("output_tokens", fields.get("max_tokens"))
    if output is not None and (type(output) is not int or output < 1):
        raise DatasetError(f"{place}: output_tokens must be a positive whole number, not {output!r}")
    return Conversation(tuple(messages), _timestamp(fields.get("timestamp"), place), output)


def _message(turn: Any, place: str) -> Message:
    if not isinstance(turn, dict):
        raise DatasetError(f"{place}: a message must be an object, not {type(turn).__name__}")
    name = turn.get("role", turn.get("from"))
    if (role := ROLES.get(str(name))) is None:
        raise DatasetError(f"{place}: unknown role {str(name)[:40]!r}; known are {', '.join(ROLES)}")
    if "role" in turn:
        return {**turn, "role": role}
    if not isinstance(turn.get("value"), str):
        raise DatasetError(f"{place}: a message with `from` needs the text in `value`")
    return {"role": role, "content": turn["value"]}


def _timestamp(value: Any, place: str) -> float | None:
    if value is None:
        return None
    try:
        seconds = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds):
        raise DatasetError(
            f"{place}: timestamp must be seconds or a time such as 2026-11-29T07:00:00Z, not {value!r}"
        )
    return seconds


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


def reversed_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages of the same lengths whose texts share no prefix with the given ones."""
    return tuple({**each, "content": _text(each)[::-1]} for each in messages)


def shared_share(prompts: Iterable[LoadPrompt]) -> float:
    """Return the share of the bytes of all prompts that repeat the beginning of an earlier prompt."""
    texts = [LoadPrompt(tuple(json.dumps(each.messages).encode()), 1) for each in prompts]
    total = sum(len(text.token_ids) for text in texts)
    return shared_tokens(texts) / total if total else 0.0


def cached_before(cached: int, prompt_tokens: int, prompts: Iterable[LoadPrompt]) -> int:
    """Return how many of the `cached` tokens were in the server's cache before the run.

    The client does not know the tokens of a text, so it estimates from the bytes how many of the
    `prompt_tokens` the `prompts` share with one another. A result that may be an error of this estimate is 0.
    """
    excess = cached - math.ceil(shared_share(prompts) * prompt_tokens)
    return excess if excess > UNEXPLAINED_SHARE * prompt_tokens else 0
