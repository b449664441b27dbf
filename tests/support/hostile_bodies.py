"""Request bodies of about a megabyte that are cheap to send and were, or could be, dear to read.

Each is refused or served like any other; none may hold up other requests. For the tests of whatever takes a
body: engine API and gateway.
"""

import json
from dataclasses import dataclass
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SIZE = 1_000_000


@dataclass(frozen=True)
class HostileBody:
    """One body and where it goes. `param`: the field that the refusal names, where the body says one."""

    name: str
    path: str
    body: bytes
    param: str | None = None


def plain_body(size: int = SIZE) -> HostileBody:
    """Return an honest body of that size, the baseline for the cost of the others."""
    return _of("a plain text", TEXT, {"prompt": "word " * (size // 5)})


def hostile_bodies(size: int = SIZE) -> list[HostileBody]:
    """Return shapes of about `size` bytes each."""
    hello = {"messages": [{"role": "user", "content": "hello"}]}
    user = {"role": "user", "content": "x"}
    many = size // 3
    name = b'"x":'
    return [
        _of("negative token ids", TEXT, {"prompt": [-1] * many}, "prompt[0]"),
        _of("one wrong token id at the end", TEXT, {"prompt": [*[1] * many, -1]}, f"prompt[{many}]"),
        _of("lists of wrong token ids", TEXT, {"prompt": [[-1]] * (size // 5)}, "prompt[0][0]"),
        _of("prompts of every kind", TEXT, {"prompt": ["a", 1, [1], None] * (size // 16)}, "prompt[1]"),
        _of("empty prompts", TEXT, {"prompt": [""] * many}),
        _of("a prompt of objects", TEXT, {"prompt": [{}] * many}, "prompt[0]"),
        _of("stops that are numbers", TEXT, {"prompt": "x", "stop": [1] * many}, "stop[0]"),
        _of("empty stops", CHAT, {**hello, "stop": [""] * many}, "stop[0]"),
        _of("stop tokens that are texts", CHAT, {**hello, "stop_token_ids": ["1"] * (size // 4)},
            "stop_token_ids[0]"),
        _of("empty messages", CHAT, {"messages": [{}] * many}, "messages[0].role"),
        _of("messages that are numbers", CHAT, {"messages": [1] * many}, "messages[0]"),
        _of("content of wrong parts", CHAT, {"messages": [{"role": "user", "content": [{}] * many}]},
            "messages[0].content[0].type"),
        _of("tools without functions", CHAT, {**hello, "tools": [{}] * many}, "tools[0].type"),
        _of("tool calls that are texts", CHAT, {"messages": [{**user, "tool_calls": ["x"] * (size // 4)}]},
            "messages[0].tool_calls[0]"),
        _of("biases that are texts", CHAT, {**hello, "logit_bias": {str(n): "x" for n in range(size // 13)}},
            "logit_bias"),
        _of("metadata that are numbers", CHAT, {**hello, "metadata": {str(n): n for n in range(size // 16)}},
            "metadata"),
        _of("blocks of no type", MESSAGES, {"max_tokens": 1, "messages": [{**user, "content": [{}] * many}]},
            "messages[0].content[0].type"),
        _of("results without calls", MESSAGES,
            {"max_tokens": 1, "messages": [{**user, "content": [{"type": "tool_result"}] * (size // 24)}]},
            "messages[0]"),
        _of("items of wrong types", RESPONSES, {"input": [{"type": "x"}] * (size // 14)}, "input[0]"),
        _of("turns of one word", RESPONSES, {"input": [user] * 8000}),
        HostileBody("deep nesting of blocks", MESSAGES, b'{"messages":' + b"[" * size + b"]" * size + b"}"),
        HostileBody("deep nesting", CHAT, b'{"messages":' + b"[" * size + b"]" * size + b"}"),
        HostileBody("one long number", TEXT, b'{"prompt":"x","max_tokens":' + b"9" * size + b"}"),
        HostileBody("unknown fields", TEXT,
                    b'{"prompt":"x","max_tokens":-1,' + b",".join(b'"%d":0' % n for n in range(size // 11))
                    + b"}", "max_tokens"),
        HostileBody("one field over and over", TEXT,
                    b'{"prompt":[-1],' + b",".join([name + b"[[[]]]"] * (size // 11)) + b"}", "prompt[0]"),
    ]  # fmt: skip


def _of(name: str, path: str, fields: dict[str, Any], param: str | None = None) -> HostileBody:
    return HostileBody(name, path, json.dumps(fields, separators=(",", ":")).encode(), param)
