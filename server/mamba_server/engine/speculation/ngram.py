"""Drafts by looking up what followed the last tokens of a sequence earlier in it. Pure, without weights.

It finds text that an answer copies from its prompt or from itself: code that is edited, quotes, tables.
"""

import numpy as np

from mamba_server.cache import NO_TOKENS, Tokens

SHORTEST = 3
"""Least number of last tokens that an earlier place must share: two are found too often by chance."""
LONGEST = 16
"""Number of shared tokens beyond which a place is as good as any."""
SEARCH_TOKENS = 1 << 15
"""Number of last tokens that are searched: tens of microseconds."""
PLACES = 8
"""Number of latest places that are compared."""


def continuation(token_ids: Tokens, most: int) -> Tokens:
    """Return up to `most` tokens that followed the longest earlier occurrence of the end of `token_ids`.

    Of equally long ones the latest counts. A text that repeats itself is continued round; the result is empty
    where nothing is found.
    """
    text = token_ids[-SEARCH_TOKENS:]
    last = len(text) - 1
    if last < SHORTEST or most <= 0:
        return NO_TOKENS
    matches = text[SHORTEST - 1 : last] == text[last]
    for back in range(1, SHORTEST):
        matches &= text[SHORTEST - 1 - back : last - back] == text[last - back]
    places = np.flatnonzero(matches)[-PLACES:] + SHORTEST - 1
    if not len(places):
        return NO_TOKENS
    place = max(places.tolist(), key=lambda end: (_shared(text, end, last), end))
    behind = np.arange(most) % (last - place)
    drafts: Tokens = text[place + 1 + behind]
    return drafts


def _shared(text: Tokens, end: int, last: int) -> int:
    """Return how many tokens up to `end` equal those up to `last`, at most `LONGEST`."""
    count = min(LONGEST, end + 1)
    differs = np.flatnonzero(text[end + 1 - count : end + 1] != text[last + 1 - count : last + 1])
    return count - 1 - int(differs[-1]) if len(differs) else count
