"""`StopMatcher`: finds stop strings in text that arrives in pieces. Pure.

Text that may be the beginning of a stop string is held back, so a client never sees part of one. Used by
`sequence_text`, one matcher per sequence.
"""

from dataclasses import dataclass

from mamba_text.markers import unfinished


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The text that became final with a piece, and the stop string that ended it, if any."""

    text: str
    stop: str | None = None


class StopMatcher:
    """A search for stop strings in text that arrives in pieces.

    It finds the stop string that ends first; of several that end there, the one that begins first.
    """

    def __init__(self, stops: tuple[str, ...], *, show: bool = False) -> None:
        """Prepare to search for `stops`. `show` says whether the stop string is a part of the text."""
        self._show = show
        self._stops = stops
        self._pending = ""

    def feed(self, piece: str) -> StopMatch:
        """Add a piece of text. The matcher must not be fed again after a match."""
        if not self._stops:
            return StopMatch(piece)
        text = self._pending + piece
        match: tuple[int, int, str] | None = None
        for stop in self._stops:
            if (begin := text.find(stop)) >= 0:
                match = min(match or (len(text) + 1, 0, ""), (begin + len(stop), begin, stop))
        if match is not None:
            _, begin, stop = match
            self._pending = ""
            if self._show:
                begin += len(stop)
            return StopMatch(text[:begin], stop)
        keep = max(unfinished(text, stop) for stop in self._stops)
        self._pending = text[len(text) - keep :]
        return StopMatch(text[: len(text) - keep])

    def flush(self) -> str:
        """Return the text that was held back. It is no stop string, since nothing follows."""
        text, self._pending = self._pending, ""
        return text
