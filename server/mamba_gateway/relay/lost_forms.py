"""Requests with a form on which an engine ended: they are not sent to the next one, nor when they come again.

What reads a form is native code, so such a request is the first to be suspected. Used by the relay.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED_SECONDS = 600.0
MOST_REMEMBERED = 1024


class LostForms:
    """The requests of one gateway on which an engine ended, by the digests of their bodies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: OrderedDict[bytes, float] = OrderedDict()

    def add(self, body: bytes) -> None:
        """An engine ended on this request."""
        self._ended[hashlib.sha256(body).digest()] = self._clock()
        if len(self._ended) > MOST_REMEMBERED:
            self._ended.popitem(last=False)

    def __contains__(self, body: bytes) -> bool:
        if not self._ended:
            return False
        at = self._ended.get(hashlib.sha256(body).digest())
        return at is not None and self._clock() - at < REMEMBERED_SECONDS
