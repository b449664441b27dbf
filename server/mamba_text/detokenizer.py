"""Token ids to text as they come: whole characters alone, never a part of one.

One per sequence, used by `sequence_text`. The library's DecodeStream does the work; this adds the context of
the prompt, a bound on how long a broken character may hold text back, and the rest at the end.
"""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from mamba_text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# A character has at most four bytes, so at most four byte tokens: more than this and the bytes are broken.
MOST_HELD = 16
# Enough of what came before for a decoder that treats the first token of a text differently.
CONTEXT = 6


class Detokenizer:
    """Incremental text of one sequence. `prompt_tail`: the prompt's last token ids; [] starts a new text.

    `special`: the text shows special tokens, or those of `kept` alone if there are any.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail: Sequence[int] = (),
        *,
        special: bool = False,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special or bool(kept)
        self._kept = frozenset() if special else kept
        self._context = list(prompt_tail[-CONTEXT:])
        self._held: list[int] = []
        self._stream = DecodeStream(ids=list(self._context), skip_special_tokens=not self._special)

    def feed(self, token_id: int) -> str:
        """The text that this token makes certain; "" while a character is incomplete."""
        if self._kept and token_id not in self._kept and self._tokenizer.piece(token_id).special:
            return ""
        self._held.append(token_id)
        try:
            text = self._stream.step(self._tokenizer.rust, token_id)
        except Exception:  # bare Exception: the decoder rewrote text it had given out (an invalid prefix)
            return self._restart(self._rest())
        if text:
            self._context = (self._context + self._held)[-CONTEXT:]
            self._held.clear()
            return text
        if len(self._held) >= MOST_HELD:
            return self._restart(self._rest())
        return ""

    def flush(self) -> str:
        """What was held back and is whole; an incomplete last character is dropped."""
        text = self._rest().rstrip(REPLACEMENT)
        self._held.clear()
        return text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, special=self._special)

    def _rest(self) -> str:
        """Text of the held tokens, seen in their context."""
        before = self._decode(self._context)
        both = self._decode(self._context + self._held)
        if both.startswith(before):
            return both[len(before) :]
        return self._decode(self._held)

    def _restart(self, text: str) -> str:
        # Broken bytes are no context: then what was whole before them stays it.
        seen = self._decode(self._held[-CONTEXT:])
        if seen and not seen.endswith(REPLACEMENT):
            self._context = self._held[-CONTEXT:]
        self._held.clear()
        self._stream = DecodeStream(ids=list(self._context), skip_special_tokens=not self._special)
        return text
