"""`GrammarCompiler`: makes `OutputGrammar`s of requests beside the loop, which goes on meanwhile.

The API process has had each made before, in a process that may die: what comes here is known to end. The
model's tokenizer is read for the first of them: 0.6 s, and 130 MB, where there are 131,072 tokens.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLTokenizer

from mamba_server.engine.sequences.output_grammar import OutputGrammar
from mamba_server.grammar_matcher import first_mask, make_matcher, make_tokenizer
from mamba_server.wire import AddRequest, RequestRejected

THREADS = 2
"""A grammar that takes a second does not stand in front of all others."""
STACK = 64 << 20
"""Bytes of address space of such a thread: eight times what the grammar was checked with."""
MOST_KEPT = 32
"""Grammars that are kept at their beginning, since clients repeat them."""


class GrammarCompiler:
    """The grammars of one model. Called by the loop's thread."""

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`directory`: of the model, with its tokenizer.json."""
        self._directory, self._vocab_size, self._eos = directory, vocab_size, list(eos_token_ids)
        self._threads = ThreadPoolExecutor(THREADS, "grammars")
        self._pending: dict[str, AddRequest] = {}
        self._kept: OrderedDict[str, Future[OutputGrammar]] = OrderedDict()
        """By text: the grammar, made or being made."""
        self._reading = threading.Lock()
        self._read: LLTokenizer | None = None

    @property
    def pending(self) -> bool:
        """Some grammar is being made."""
        return bool(self._pending)

    def begin(self, request: AddRequest) -> None:
        """Make the grammar of the request; `take` has it later."""
        text = request.params.grammar
        self._pending[request.request_id] = request
        if text in self._kept:
            self._kept.move_to_end(text)
            return
        before = threading.stack_size(STACK)
        try:
            self._kept[text] = self._threads.submit(self.compile, text)
        finally:
            threading.stack_size(before)
        self._drop_oldest()

    def cancel(self, request_id: str) -> None:
        """Nobody waits for the request any more; no effect if it is none of these."""
        request = self._pending.pop(request_id, None)
        if request is None:
            return
        text = request.params.grammar
        if all(each.params.grammar != text for each in self._pending.values()) and self._kept[text].cancel():
            del self._kept[text]

    def take(self) -> list[tuple[AddRequest, OutputGrammar | RequestRejected]]:
        """The requests whose grammars are made, whatever is in front of them, each with it or with why there
        is none."""
        done = [each for each in self._pending.values() if self._kept[each.params.grammar].done()]
        return [(request, self._result(request)) for request in done]

    def compile(self, text: str) -> OutputGrammar:
        """Raises ValueError with what is wrong with the grammar, or with the tokenizer."""
        tokenizer = self._tokenizer()
        matcher = make_matcher(tokenizer, text)
        # What a grammar costs shows in its first mask, which the loop will find made.
        words = first_mask(matcher, self._vocab_size)
        if failure := str(matcher.get_error()):
            raise ValueError(failure)
        if not words.any():
            raise ValueError("no token may come first")
        known = frozenset(tokenizer.eos_tokens)
        return OutputGrammar(matcher, known, known)

    def _tokenizer(self) -> LLTokenizer:
        with self._reading:
            if self._read is None:
                file = self._directory / "tokenizer.json"
                self._read = make_tokenizer(file, self._vocab_size, self._eos)
            return self._read

    def _drop_oldest(self) -> None:
        """Keep the newest, and those that are waited for."""
        wanted = {each.params.grammar for each in self._pending.values()}
        for text in list(self._kept):
            if len(self._kept) <= MOST_KEPT:
                return
            if text not in wanted:
                del self._kept[text]

    def _result(self, request: AddRequest) -> OutputGrammar | RequestRejected:
        del self._pending[request.request_id]
        try:
            return self._kept[request.params.grammar].result()
        except (ValueError, OSError) as error:
            return RequestRejected(
                request.request_id, 400, "invalid_request_error", "invalid_output_grammar",
                f"the form that the answer is to have cannot be followed: {error}",
            )  # fmt: skip
