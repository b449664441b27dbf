"""Asks one question with the official `openai` client and prints the answer as JSON.

Runs in a pod of its own, started by the end-to-end tests as `python chat_client.py URL MODEL TOKENS`; the
messages come as JSON on standard input. With TOKENS other than 0 the answer has so many. It changes nothing
about the client except that it never asks twice.
"""

import json
import sys
from typing import Any

from openai import OpenAI

TIMEOUT = 120.0


def main(url: str, model: str, tokens: int) -> None:
    client = OpenAI(base_url=url, api_key="unused", timeout=TIMEOUT, max_retries=0)
    messages: list[Any] = json.load(sys.stdin)
    request: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": tokens or 32,
    }
    if tokens:
        request["extra_body"] = {"ignore_eos": True}
    pieces: list[str] = []
    for chunk in client.chat.completions.create(**request, stream=True):
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    whole = client.chat.completions.create(**request)
    details = whole.usage.prompt_tokens_details
    answer = {
        "models": [one.id for one in client.models.list()],
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "whole": whole.choices[0].message.content,
        "prompt_tokens": whole.usage.prompt_tokens,
        "cached_tokens": details.cached_tokens,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
