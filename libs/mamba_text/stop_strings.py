"""`StopMatcher`: finds stop strings in text that arrives in pieces. Pure.

Text that may be the beginning of a stop string is held back, so a client never sees part of one. Used by
`sequence_text`, one matcher per sequence.
"""

from dataclasses import dataclass

from mamba_text.markers import unfinished


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Text that became final with a piece, and the stop string that was found, if any."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Finds the stop string that ends first; of several that end together, the one that begins first."""

    def __init__(self, stops: tuple[str, ...], *, show: bool = False) -> None:
        """`show`: the stop string is a part of the text."""
        self._show = show
        self._stops = stops
        self._pending = ""

    def feed(self, piece: str) -> StopMatch:
        """Add a piece of text. After a match the matcher is spent: do not feed it again."""
        if not self._stops:
            return StopMatch(piece)
        text = self._pending + piece
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            if (begin := text.find(stop)) >= 0:
                found = min(found or (len(text) + 1, 0, ""), (begin + len(stop), begin, stop))
        if found is not None:
            _, begin, stop = found
            self._pending = ""
            if self._show:
                begin += len(stop)
            return StopMatch(text[:begin], stop)
        keep = max(unfinished(text, stop) for stop in self._stops)
        self._pending = text[len(text) - keep :]
        return StopMatch(text[: len(text) - keep])

    def flush(self) -> str:
        """The text held back: nothing follows, so it is no stop string."""
        text, self._pending = self._pending, ""
        return text
