"""`RecentExplanations`: what the last requests that asked for an explanation were told, bounded.

The endpoints that generate add to them, and the admin API finds them. Nothing is kept of other requests.
"""

from collections import OrderedDict
from typing import Any


class RecentExplanations:
    """Explanations of the last requests that asked for one, by the identifiers of request and answer."""

    MOST = 256
    """Most requests whose explanations are kept."""

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}
        """Identifier of the answer by that of the request."""
        self._kept: OrderedDict[str, tuple[str, list[dict[str, Any]]]] = OrderedDict()
        """Identifier of the request, and explanations, by identifier of the answer."""

    def keep(self, request_id: str, answer_id: str, explanations: list[dict[str, Any]]) -> None:
        """Keep the explanations of one request, and drop the oldest if there are too many."""
        self._answers[request_id] = answer_id
        self._kept[answer_id] = request_id, explanations
        if len(self._kept) > self.MOST:
            oldest, (request, _) = self._kept.popitem(last=False)
            # A client may send one request id twice: the later answer keeps it.
            if self._answers.get(request) == oldest:
                del self._answers[request]

    def find(self, name: str) -> list[dict[str, Any]] | None:
        """Return the explanations of the request or answer of that identifier; None = none are kept."""
        # The server makes the identifiers of answers, and clients those of requests.
        entry = self._kept.get(name) or self._kept.get(self._answers.get(name, ""))
        return entry[1] if entry is not None else None
