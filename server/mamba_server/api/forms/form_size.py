"""How much a client wrote of a form, without writing it anew. Pure."""

from typing import Any


def is_shorter_than(value: Any, most: int) -> bool:
    """Whether a value of JSON takes less than about so many characters; what is beyond them is not read."""
    taken = 0
    waiting = [value]
    while waiting and taken < most:
        each = waiting.pop()
        if isinstance(each, str):
            taken += len(each) + 2
        elif isinstance(each, dict):
            taken += 2 * len(each) + sum(map(len, each))
            waiting += each.values()
        elif isinstance(each, list):
            taken += 2 * len(each)
            waiting += each
        else:
            taken += 1
    return taken < most
