"""`QuickEncoder`: the token ids of texts, ten times as quickly as the tokenizer itself finds them.

The package fastokens (the extra `quick-tokenizer`) reads the same description of a tokenizer and does the
same in less time. Its ids are used only where a wrong id costs little, in gateways: a gateway that looks a
prompt up by wrong ids finds no cached prefix of it, and engines encode all prompts by the tokenizer itself.
Nevertheless the two are compared, on texts of many kinds at the beginning and on some texts of requests
later. After one difference, or where the package is missing or does not know the kind of tokenizer, the
tokenizer itself encodes all texts.
"""

from collections.abc import Callable
from typing import Protocol

import structlog

from mamba_text.tokenizer import Tokenizer

COMPARED_EACH = 64
"""Number of texts of which one is encoded by both."""
COMPARED_CHARS = 2048
"""Number of characters up to which a text may be encoded by both, which bounds the time of that."""
PROBES = (
    "Plain words, with commas; and 1234567890 digits.\n\n\n  indented\tby\ttabs   \r\n end",
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\"  # don't, we'll, I'VE, they're\n\n",
    '{"name": "read_file", "arguments": {"path": "/a/b-c_d.py", "limit": 2000, "x": null}}',
    "d41d8cd98f00b204e9800998ecf8427e 0xDEADBEEF https://a.example/?q=1&r=%20#top",
    "Stra\u00dfe caf\u00e9 cafe\u0301 \u0391\u03b8\u03ae\u03bd\u03b1 \u041c\u043e\u0441\u043a\u0432\u0430",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\u4e2d\u6587\u3001\u65e5\u672c\u8a9e\u3002\ud55c\uad6d\uc5b4 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\U0001f600\U0001f468\u200d\U0001f469 \u00a0\u2003\u3000\ufeff\u200b\x00\x7f\ufffd \u2028\u2029",
    " leading and trailing spaces ", "", "x" * 700, "\n" * 70, " " * 70,
)  # fmt: skip
"""Texts on which both have to agree before the quicker one is used."""

log = structlog.get_logger(__name__)
TokenIdsOf = Callable[[str], list[int]]


class _QuickTokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool) -> "_QuickEncoding": ...


class _QuickEncoding(Protocol):
    ids: list[int]


def quick_token_ids(tokenizer: Tokenizer) -> TokenIdsOf | None:
    """Return the function of the quicker implementation; None = there is none with the same ids."""
    try:
        from fastokens import Tokenizer as FastTokenizer
    except ImportError:
        return None
    try:
        quick: _QuickTokenizer = FastTokenizer.from_json_str(tokenizer.rust.to_str())

        def token_ids(text: str) -> list[int]:
            return quick.encode(text, add_special_tokens=False).ids

        added = [token.content for token in tokenizer.rust.get_added_tokens_decoder().values()]
        probes = [*PROBES, *(f"{content}{PROBES[0]}{content}\nx" for content in added[:16])]
        agrees = all(token_ids(probe) == tokenizer.encoding(probe).ids for probe in probes)
    except Exception as error:  # the package raises several kinds for tokenizers that it does not know
        log.info("texts are encoded by the tokenizer itself", reason=str(error) or type(error).__name__)
        return None
    if not agrees:
        log.info("texts are encoded by the tokenizer itself", reason="the quicker one has other ids")
    return token_ids if agrees else None


class QuickEncoder:
    """The encoder of one tokenizer; several threads may use it."""

    def __init__(self, tokenizer: Tokenizer, quick: TokenIdsOf | None = None) -> None:
        """Create the encoder; `quick` replaces the function of `quick_token_ids`."""
        self._tokenizer = tokenizer
        self._quick = quick or quick_token_ids(tokenizer)
        self._until_compared = 0

    @property
    def is_quick(self) -> bool:
        """Whether the quicker implementation is used."""
        return self._quick is not None

    def token_ids(self, text: str) -> list[int]:
        """Return the ids that `Tokenizer.token_ids` returns for `text`."""
        quick = self._quick
        if quick is None:
            return self._tokenizer.token_ids(text)
        try:
            token_ids = quick(text)
        except Exception as error:  # for example of a text with half of a surrogate pair
            return self._give_up(text, str(error) or type(error).__name__)
        # Threads may count past each other, which compares a text more or less.
        self._until_compared -= 1
        if self._until_compared > 0 or len(text) > COMPARED_CHARS:
            return token_ids
        self._until_compared = COMPARED_EACH
        if token_ids != self._tokenizer.token_ids(text):
            return self._give_up(text, "the quicker one has other ids")
        return token_ids

    def _give_up(self, text: str, reason: str) -> list[int]:
        token_ids = self._tokenizer.token_ids(text)  # raises what the text is refused for, if it is
        self._quick = None
        log.warning("texts are encoded by the tokenizer itself", reason=reason)
        return token_ids
