"""Words for people and clients that repeat what somebody wrote: of whatever size that was. Pure."""

import re

LONGEST_WORD = 256
"""Characters of a word that is told whole: names of models and images are shorter."""
_BEGIN, _END = 64, 16
"""Characters of a longer word that are told."""
_TOO_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def bounded(text: str, most: int) -> str:
    """The text with at most so many characters, and without the middle of words that nobody can read."""
    if len(text) > LONGEST_WORD:
        text = _TOO_LONG.sub(lambda found: f"{found[0][:_BEGIN]}…{found[0][-_END:]}", text)
    return text if len(text) <= most else text[: most - 1] + "…"
