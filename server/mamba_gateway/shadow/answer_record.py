"""`AnswerRecord`: what one revision answered to a request of which there is a copy. Pure.

The relay fills in the record of the client's answer while the bytes pass, and `ShadowCopies` that of the
copy. `outcomes` decides what a pair of them says about both revisions.
"""

from typing import Literal

import msgspec

from mamba_edge.exchange.asgi_responses import is_full, is_over_own_limit
from mamba_gateway.upstream.connection import Pair

MAX_TEXT_BYTES = 256 * 1024
"""Size in bytes from which the text of an answer is not compared, so that memory is bounded."""
Kind = Literal["answered", "failed", "rejected", "full"]
"""answered: the engine has answered; failed: the fault of the engine; rejected: with a status 4xx; full: the
engine takes no more requests now, which says nothing about its revision."""
Outcome = Literal["answered", "failed"]


class AnswerRecord(msgspec.Struct, eq=False):
    """Keeps what is compared of one engine's answer, while its bytes pass."""

    kind: Kind | None = None
    """Kind of the answer; None = it has not ended."""
    streamed: bool = False
    """Whether the answer is a stream of server-sent events."""
    body: bytearray = msgspec.field(default_factory=bytearray)
    """Bytes of the answer, as long as there are at most `MAX_TEXT_BYTES`."""
    too_long: bool = False
    """Whether the answer is longer, so that its bytes were dropped."""

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the answer."""
        if self.too_long:
            return
        self.body += chunk
        if len(self.body) > MAX_TEXT_BYTES:
            self.too_long, self.body = True, bytearray()


def kind_of(status: int, headers: list[Pair], *, failed: bool | None) -> Kind:
    """Return the kind of an answer that has ended.

    `failed`: whether its events report a failure; None = they report a mistake of the client.
    """
    if is_full(status, headers) or is_over_own_limit(status, headers):
        return "full"
    if status >= 500 or failed:
        return "failed"
    return "rejected" if status >= 400 or failed is None else "answered"


def outcomes(stable: Kind, candidate: Kind) -> tuple[Outcome, Outcome] | None:
    """Return how both revisions answered one request; None if the pair says nothing about them.

    A candidate that rejects a request which the other revision answers has failed: clients would see an
    error.
    """
    if "full" in (stable, candidate):
        return None
    worse = candidate == "failed" or (candidate == "rejected" and stable == "answered")
    return "failed" if stable == "failed" else "answered", "failed" if worse else "answered"
