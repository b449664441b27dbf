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
    place, shared = _longest_match(text)
    if not shared or most <= 0:
        return NO_TOKENS
    behind = np.arange(most) % (len(text) - 1 - place)
    drafts: Tokens = text[place + 1 + behind]
    return drafts


def shared_tokens(token_ids: Tokens) -> int:
    """Return how many last tokens of `token_ids` occurred before, `LONGEST` at most; 0 = too few to count.

    All but `SHORTEST` of them would have been right as the draft behind the first ones.
    """
    return _longest_match(token_ids[-SEARCH_TOKENS:])[1]


def _longest_match(text: Tokens) -> tuple[int, int]:
    """Return the last token's place in the longest earlier occurrence of the end, and its length.

    The length is 0 where there is none.
    """
    # Bytes are searched in one call, whose place may lie within a token.
    content, size = text.tobytes(), text.itemsize
    end = content[-SHORTEST * size :]
    best, places = (0, 0), 0
    start = content.rfind(end, 0, len(content) - 1) if len(text) > SHORTEST else -1
    while start >= 0 and places < PLACES and best[0] < LONGEST:
        if start % size == 0:
            place = start // size + SHORTEST - 1
            best, places = max(best, (_shared(text, place, len(text) - 1), place)), places + 1
        start = content.rfind(end, 0, start + len(end) - 1)
    return best[1], best[0]


def _shared(text: Tokens, end: int, last: int) -> int:
    """Return how many tokens up to `end` equal those up to `last`, at most `LONGEST`."""
    count = min(LONGEST, end + 1)
    differs = np.flatnonzero(text[end + 1 - count : end + 1] != text[last + 1 - count : last + 1])
    return count - 1 - int(differs[-1]) if len(differs) else count
