"""`Detokenizer`: incremental detokenization that emits only complete characters.

`sequence_text` has one for each sequence. It wraps the library's DecodeStream and adds the context of the
prompt, a bound on the tokens that an incomplete character may hold back, and a flush at the end.
"""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from mamba_text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
MAX_PENDING = 16
"""Tokens that may be pending. A character has at most four bytes, so at most four byte tokens: with more
tokens the bytes are broken."""
CONTEXT = 6
"""Previous tokens that are decoded too, for a decoder that treats the first token of a text differently."""


class Detokenizer:
    """The text of one sequence of token ids that arrive one by one.

    Args:
        tokenizer: the model's tokenizer.
        prompt_tail: last token ids of the prompt that the sequence continues; [] = the text begins here.
        special: whether the text shows all special tokens.
        visible_special: ids of the special tokens that the text shows if `special` is False.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail: Sequence[int] = (),
        *,
        special: bool = False,
        visible_special: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special or bool(visible_special)
        self._visible_special = frozenset() if special else visible_special
        self._context = list(prompt_tail[-CONTEXT:])
        self._pending: list[int] = []
        self._stream = DecodeStream(ids=list(self._context), skip_special_tokens=not self._special)

    def feed(self, token_id: int) -> str:
        """Return the text that became final with this token.

        It is "" while a character is incomplete, and for a special token that the text does not show.
        """
        if (
            self._visible_special
            and token_id not in self._visible_special
            and self._tokenizer.piece(token_id).special
        ):
            return ""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer.rust, token_id)
        except Exception:  # bare Exception: the decoder changed text that it had returned (an invalid prefix)
            return self._restart(self._pending_text())
        if text:
            self._context = (self._context + self._pending)[-CONTEXT:]
            self._pending.clear()
            return text
        if len(self._pending) >= MAX_PENDING:
            return self._restart(self._pending_text())
        return ""

    def flush(self) -> str:
        """Return the pending text at the end, without an incomplete last character."""
        text = self._pending_text().rstrip(REPLACEMENT)
        self._pending.clear()
        return text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, special=self._special)

    def _pending_text(self) -> str:
        """Return the text of the pending tokens, decoded after their context."""
        before = self._decode(self._context)
        both = self._decode(self._context + self._pending)
        if both.startswith(before):
            return both[len(before) :]
        return self._decode(self._pending)

    def _restart(self, text: str) -> str:
        # Incomplete bytes are useless as context, so the previous context stays.
        tail = self._decode(self._pending[-CONTEXT:])
        if tail and not tail.endswith(REPLACEMENT):
            self._context = self._pending[-CONTEXT:]
        self._pending.clear()
        self._stream = DecodeStream(ids=list(self._context), skip_special_tokens=not self._special)
        return text
