"""Shortens texts that repeat what users wrote, before they reach people and clients. Pure."""

import re

LONGEST_WORD = 256
"""Maximum length of a word, in characters, that is repeated whole: names of models and images are shorter."""
_BEGIN, _END = 64, 16
"""Characters kept from the beginning and the end of a longer word."""
_TOO_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def bounded(text: str, limit: int) -> str:
    """Return `text` with the middle cut out of very long words, and then cut to `limit` characters."""
    if len(text) > LONGEST_WORD:
        text = _TOO_LONG.sub(lambda match: f"{match[0][:_BEGIN]}…{match[0][-_END:]}", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
