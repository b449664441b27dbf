"""The text side of one sequence: token ids in, final text out, and the token at which it ended.

Used by the API process, one per sequence. It does not influence sampling: what the engine must do about a
stop string (keep the first tokens, drop the rest) is returned, not sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mamba_text.detokenizer import Detokenizer
from mamba_text.stop_strings import StopMatcher
from mamba_text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CertainText:
    """The text that became final with some new tokens."""

    text: str
    """Text for the client; it includes a stop string only if the client sees that (`TextVisibility.stop`)."""
    used: int
    """Number of the new tokens that count: all, or those up to the one that completed a stop string."""
    stopped: bool = False
    """Whether a stop string ended the sequence here."""
    stop: str | None = None
    """The stop string that ended the sequence; None = none did."""


@dataclass(frozen=True, slots=True)
class TextVisibility:
    """The strings that end a sequence, and which special parts of the sequence the client sees."""

    stops: tuple[str, ...] = ()
    """Strings that end the sequence."""
    special_tokens: bool = False
    """Whether special tokens are visible."""
    stop: bool = False
    """Whether the string or token that ended the sequence is visible."""
    visible_special: frozenset[int] = frozenset()
    """Ids of special tokens that are visible although `special_tokens` is off."""


class SequenceText:
    """Turns the tokens of one sequence into text, and finds its stop strings.

    Stop strings are ignored for the first `min_tokens` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail: Sequence[int],
        visibility: TextVisibility,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_tail,
            special=visibility.special_tokens,
            visible_special=visibility.visible_special,
        )
        self._matcher = StopMatcher(visibility.stops, show=visibility.stop)
        self._hide_stop = not visibility.stop
        self._min_tokens = min_tokens
        self.tokens = 0
        """Number of tokens that count so far."""

    def feed(self, token_ids: Sequence[int], *, stop_token: bool = False, last: bool = False) -> CertainText:
        """Add tokens, and return the text that became final.

        `stop_token` says that the last token ended the sequence: it is shown only if stops are visible.
        `last` says that no tokens follow.
        """
        parts: list[str] = []
        visible = len(token_ids) - 1 if stop_token and self._hide_stop else len(token_ids)
        for place, token_id in enumerate(token_ids[:visible]):
            self.tokens += 1
            if (stop := self._add(self._detokenizer.feed(token_id), parts)) is not None:
                return CertainText("".join(parts), place + 1, stopped=True, stop=stop)
        self.tokens += len(token_ids) - visible
        if last:
            if (stop := self._add(self._detokenizer.flush(), parts)) is not None:
                return CertainText("".join(parts), len(token_ids), stopped=True, stop=stop)
            parts.append(self._matcher.flush())
        return CertainText("".join(parts), len(token_ids))

    def _add(self, piece: str, parts: list[str]) -> str | None:
        """Add a piece of text, and append to `parts` what is final; return the stop string that it completes.

        The result is None if it completes none. For the first `min_tokens` tokens, stop strings are ordinary
        text.
        """
        if not piece:
            return None
        if self.tokens <= self._min_tokens:
            parts.append(piece)
            return None
        matched = self._matcher.feed(piece)
        parts.append(matched.text)
        return matched.stop
