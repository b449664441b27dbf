"""`GrammarCompiler`: makes `OutputGrammar`s of requests beside the loop, which goes on meanwhile.

The model's tokenizer is read for the first of them: 0.6 s, and 130 MB, where there are 131,072 tokens.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from mamba_server.engine.output_grammar import OutputGrammar, token_masks
from mamba_server.grammar_limits import LIMITS
from mamba_server.wire import AddRequest, RequestRejected


class GrammarCompiler:
    """Of one model. Called by the loop's thread."""

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`directory`: of the model, with its tokenizer.json."""
        self._directory, self._vocab_size, self._eos = directory, vocab_size, list(eos_token_ids)
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._pending: dict[str, tuple[AddRequest, Future[OutputGrammar]]] = {}

    @property
    def pending(self) -> bool:
        """Some grammar is being made."""
        return bool(self._pending)

    def begin(self, request: AddRequest) -> None:
        """Make the grammar of the request; `take` has it later."""
        self._pending[request.request_id] = request, self._thread.submit(self.compile, request.params.grammar)

    def cancel(self, request_id: str) -> None:
        """Nobody waits for the request any more; no effect if it is none of these."""
        if found := self._pending.pop(request_id, None):
            found[1].cancel()

    def take(self) -> list[tuple[AddRequest, OutputGrammar | RequestRejected]]:
        """The requests whose grammars are made, each with it or with why there is none."""
        # They are made in their order, and handed over in it.
        done = takewhile(lambda each: each[1].done(), list(self._pending.values()))
        return [(request, self._result(request)) for request, _ in done]

    def compile(self, text: str) -> OutputGrammar:
        """Raises ValueError with what is wrong with the grammar, or with the tokenizer."""
        grammar = OutputGrammar(LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS))
        # What a grammar costs shows in its first mask, which the loop will find made.
        first = token_masks([grammar], self._vocab_size)
        assert first is not None
        if grammar.error or not first.words.any():
            raise ValueError(grammar.error or "no token may come first")
        return grammar

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        text = (self._directory / "tokenizer.json").read_text(encoding="utf-8")
        return LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos)

    def _result(self, request: AddRequest) -> OutputGrammar | RequestRejected:
        _, future = self._pending.pop(request.request_id)
        try:
            return future.result()
        except (ValueError, OSError) as error:
            return RequestRejected(
                request.request_id, 400, "invalid_request_error", "invalid_output_grammar",
                f"the form that the answer is to have cannot be followed: {error}",
            )  # fmt: skip
