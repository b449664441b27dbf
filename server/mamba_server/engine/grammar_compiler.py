"""`GrammarCompiler`: compiles the grammars of requests in threads, while the loop continues.

The API process has compiled each grammar before, in a process that may die, so compiling is known to end.
The model's tokenizer is read for the first grammar: 0.6 s and 130 MB for 131,072 tokens.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLTokenizer

from mamba_server.engine.sequences.output_grammar import NextTokens, OutputGrammar
from mamba_server.engine.sequences.token_rules import rules_for
from mamba_server.grammar_matcher import first_mask, make_matcher, make_tokenizer
from mamba_server.wire import AddRequest, RequestRejected, SamplingParams

THREADS = 2
"""Number of threads, such that a grammar that takes a second does not delay all others."""
STACK_BYTES = 64 << 20
"""Bytes of address space of the stack of a compiling thread: eight times the stack of the check."""
MAX_KEPT = 32
"""Number of grammars kept at their beginning, since clients repeat them."""


class GrammarCompiler:
    """Compiles the grammars of requests for one model; called by the loop's thread."""

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Start the threads. `directory` is the model's directory, with its tokenizer.json."""
        self._directory, self._vocab_size, self._eos = directory, vocab_size, list(eos_token_ids)
        self._threads = ThreadPoolExecutor(THREADS, "grammars")
        self._pending: dict[str, AddRequest] = {}
        self._kept: OrderedDict[str, Future[OutputGrammar | None]] = OrderedDict()
        """Grammars by text, compiled or being compiled. The entry of "" is None, and reading the tokenizer
        completes it."""
        self._reading = threading.Lock()
        self._read: LLTokenizer | None = None

    @property
    def pending(self) -> bool:
        """Whether a grammar is being compiled."""
        return bool(self._pending)

    def begin(self, request: AddRequest) -> None:
        """Compile the grammar of the request, if any, and read the tokenizer; `take` returns it later."""
        text = request.params.grammar
        self._pending[request.request_id] = request
        if text in self._kept:
            self._kept.move_to_end(text)
            return
        before = threading.stack_size(STACK_BYTES)
        try:
            self._kept[text] = self._threads.submit(self.compile, text)
        finally:
            threading.stack_size(before)
        self._drop_oldest()

    def cancel(self, request_id: str) -> None:
        """Forget the request with this id; nothing happens if no grammar of it is being compiled."""
        request = self._pending.pop(request_id, None)
        if request is None:
            return
        text = request.params.grammar
        if (
            all(other.params.grammar != text for other in self._pending.values())
            and self._kept[text].cancel()
        ):
            del self._kept[text]

    def take(self) -> list[tuple[AddRequest, NextTokens | RequestRejected | None]]:
        """Return the requests with finished grammars, in any order, each with its rules or rejection."""
        pending = self._pending.values()
        done = [request for request in pending if self._kept[request.params.grammar].done()]
        return [(request, self._result(request)) for request in done]

    def rules(self, params: SamplingParams) -> NextTokens | None:
        """Return the rules of a request that has no grammar and no budget of thoughts.

        The result is None if any token may come.
        """
        return rules_for(params, self._vocab_size)

    def compile(self, text: str) -> OutputGrammar | None:
        """Compile the grammar `text` and return it; for "", only read the tokenizer, and return None.

        Raises ValueError if the grammar or the tokenizer is invalid, with the reason.
        """
        tokenizer = self._tokenizer()
        if not text:
            return None
        matcher = make_matcher(tokenizer, text)
        # The first mask is the most expensive one; the loop then finds it computed.
        words = first_mask(matcher, self._vocab_size)
        if failure := str(matcher.get_error()):
            raise ValueError(failure)
        if not words.any():
            raise ValueError("no token may come first")
        ends = frozenset(tokenizer.eos_tokens)
        return OutputGrammar(matcher, ends, ends)

    def _tokenizer(self) -> LLTokenizer:
        with self._reading:
            if self._read is None:
                file = self._directory / "tokenizer.json"
                self._read = make_tokenizer(file, self._vocab_size, self._eos)
            return self._read

    def _drop_oldest(self) -> None:
        """Drop the oldest grammars for which no request waits."""
        pending = {request.params.grammar for request in self._pending.values()}
        for text in list(self._kept):
            if len(self._kept) <= MAX_KEPT:
                return
            if text not in pending:
                del self._kept[text]

    def _result(self, request: AddRequest) -> NextTokens | RequestRejected | None:
        del self._pending[request.request_id]
        params = request.params
        try:
            grammar, tokenizer = self._kept[params.grammar].result(), self._tokenizer()
            return rules_for(params, self._vocab_size, grammar, tokenizer.decode_bytes)
        except (ValueError, OSError) as error:
            return RequestRejected(
                request.request_id, 400, "invalid_request_error", "invalid_output_grammar",
                f"the form that the answer is to have cannot be followed: {error}",
            )  # fmt: skip
