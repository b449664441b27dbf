"""One HTTP request while it generates: its prompts go to the engine, its deltas come back as text.

The endpoints use an `ActiveRequest` as an asynchronous context: whatever ends the request (an answer, an
error, a client that disconnects) frees what the engine still holds for it. This module knows nothing of JSON.
"""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec

from mamba_edge.errors import ApiError, InternalError, InvalidRequest
from mamba_edge.usage.prices import Prices
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.engine_link.inbox import Inbox
from mamba_server.api.forms.grammar_words import readable_failure
from mamba_server.api.metrics.engine_spans import EngineSpans
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.usage.usage_totals import UsageTotals
from mamba_server.wire import (
    AddRequest,
    Cost,
    FinishReason,
    HandOver,
    PrefixExplanation,
    SequenceDelta,
    TokenLogprobs,
)
from mamba_telemetry.request_trace import UNTRACED, RequestTrace, error_code
from mamba_text.sequence_text import SequenceText, TextVisibility
from mamba_text.tokenizer import Tokenizer

Logprobs = list[TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class ChoiceUpdate:
    """Holds what one choice of an answer has gained since its last update."""

    choice: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    first: bool
    """Whether this is the choice's first update."""
    prompt_logprobs: Logprobs | None = None
    hand_over: HandOver | None = None
    """State that is kept for another engine, if that was requested."""
    stop: str | None = None
    """Stop string that ended the choice."""
    embedding: bytes = b""
    """Pooled hidden states of the prompt as float32 numbers, if requested."""


@dataclass(slots=True)
class _Sequence:
    """Holds what is remembered of one sequence while it generates."""

    text: SequenceText
    choice: int
    """Number of the choice that the client gets."""
    updated: bool = False
    started: bool = False
    finished: bool = False
    first_at: float = 0.0
    """Time of the first token, in monotonic seconds; 0 = none yet."""
    last_at: float = 0.0
    """Time of the last tokens, in monotonic seconds."""
    scores: Logprobs = field(default_factory=list)
    """Log-probabilities of the prompt that arrived before the first delta with output."""


@dataclass(slots=True)
class TokenCounts:
    """Counts the tokens of a whole HTTP request, for `usage`."""

    prompt: int = 0
    completion: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    """Cached tokens of each prompt, by the identifier of its message."""
    costs: dict[tuple[str, int], Cost] = field(default_factory=dict)
    """Cost so far by sequence, if requested."""
    prices: Prices | None = None
    """Prices of the request's model; None = the gateway has none."""

    @property
    def cached_total(self) -> int:
        return sum(self.cached.values())

    @property
    def cost(self) -> Cost | None:
        """Cost of all sequences; None = it was not requested."""
        return sum(self.costs.values(), Cost()) if self.costs else None


class ActiveRequest:
    """Sends the prompts of one HTTP request to the engine, and yields what each choice gains.

    The number of a choice is prompt index x n + sequence index.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[AddRequest],
        visibility: TextVisibility,
        metrics: RequestMetrics,
        trace: RequestTrace = UNTRACED,
        usage: UsageTotals | None = None,
    ) -> None:
        """Prepare a request; nothing is sent to the engine yet.

        Args:
            engine: the engine that generates.
            tokenizer: turns tokens into text.
            requests: messages for the engine, one for each prompt, with the same number of choices.
            visibility: parts of the text that the client gets.
            metrics: metrics of requests.
            trace: trace of the HTTP request.
            usage: totals to which the tokens of the request are added; None = they count elsewhere.
        """
        self._usage = usage
        self._engine = engine
        self._trace = trace
        self._spans = EngineSpans(trace, ())
        self._requests = requests
        self._metrics = metrics
        self._n = requests[0].n
        self._inbox = Inbox()
        self._sequences = {
            (request.request_id, index): _Sequence(
                SequenceText(tokenizer, request.token_ids, visibility, request.params.min_tokens),
                place * request.n + index,
            )
            for place, request in enumerate(requests)
            for index in range(request.n)
        }
        self._unfinished = {request.request_id: request.n for request in requests}
        self.counts = TokenCounts(prompt=sum(len(request.token_ids) for request in requests))
        self._max_tokens: dict[str, int] = {}
        """Output tokens of the longest finished sequence, by request id."""
        self.scores: list[Logprobs] = []
        """Log-probabilities of prompts, handed out already or not; the last user of each list empties it."""
        self.explanations: dict[str, PrefixExplanation] = {}
        """Explanations of the tokens that prompts resumed, by request id, as far as they were requested."""
        self._started_at = 0.0
        self._failed = False

    async def __aenter__(self) -> Self:
        """Submit the prompts to the engine. Raises NotReady."""
        self._started_at = self._requests[0].arrival or time.monotonic()
        if self._trace.recording:
            self._spans = EngineSpans(self._trace, self._requests)
            self._requests = [
                msgspec.structs.replace(request, traceparent=self._spans.traceparent(request))
                for request in self._requests
            ]
        self._engine.submit(self._requests, self._inbox)
        self._metrics.submitted(self.counts.prompt)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort the sequences that have not finished, and count the tokens that the request has used."""
        if self._usage is not None:
            counts = self.counts
            self._usage.ended(
                self._requests[0].account, counts.prompt, counts.cached_total, counts.completion
            )
        reason = "error" if self._failed or isinstance(error, Exception) else "abort"
        for (request_id, index), sequence in self._sequences.items():
            if not sequence.finished:
                self._spans.finished(request_id, index, reason if self._failed else "abort")
                self._metrics.finished(reason, time.monotonic() - self._started_at, self._trace.exemplar())
        for request_id in self._unfinished:
            self._engine.close(request_id, abort=True)

    @property
    def ended(self) -> bool:
        """Whether every choice has finished."""
        return not self._unfinished

    async def updates(self) -> AsyncIterator[ChoiceUpdate]:
        """Yield new output until every choice has finished. Raises ApiError if the request fails."""
        while self._unfinished:
            for update in await self._next():
                yield update

    async def _next(self) -> list[ChoiceUpdate]:
        try:
            updates = [self._update(delta) for delta in await self._inbox.take()]
        except ApiError as error:
            # A stream turns this error into an event, so `__aexit__` does not see it.
            self._failed = True
            self._spans.failed(error_code(error))
            raise
        return [update for update in updates if update is not None]

    def _update(self, delta: SequenceDelta) -> ChoiceUpdate | None:
        key = (delta.request_id, delta.index)
        sequence = self._sequences.get(key)
        if sequence is None or sequence.finished:
            return None  # the engine computes one more step after a stop string
        if delta.prompt_logprobs is not None and not delta.token_ids and delta.finish_reason is None:
            self._add_scores(sequence, delta.prompt_logprobs)
            return None
        scores = delta.prompt_logprobs
        if sequence.scores:
            self._add_scores(sequence, scores or ())
            scores, sequence.scores = sequence.scores, []
        first, sequence.updated = not sequence.updated, True
        finish = delta.finish_reason
        if delta.cost is not None:
            self.counts.costs[key] = delta.cost
        step = sequence.text.feed(
            delta.token_ids, stop_token=delta.stop_token_id is not None, last=finish is not None
        )
        if step.stopped:
            if finish is None:
                self._engine.stop_sequence(delta.request_id, delta.index, sequence.text.tokens)
            finish = "stop"
        used = delta.token_ids[: step.used]
        self._count(delta, sequence, len(used))
        if finish is not None:
            self._finish(sequence, finish, delta)
        return ChoiceUpdate(
            choice=sequence.choice,
            text=step.text,
            token_ids=used,
            logprobs=None if delta.logprobs is None else delta.logprobs[: step.used],
            finish_reason=finish,
            first=first,
            prompt_logprobs=scores,
            hand_over=delta.hand_over,
            stop=step.stop,
            embedding=delta.embedding,
        )

    def _add_scores(self, sequence: _Sequence, scores: Iterable[TokenLogprobs | None]) -> None:
        if not sequence.scores:
            self.scores.append(sequence.scores)
        sequence.scores += scores

    def _count(self, delta: SequenceDelta, sequence: _Sequence, tokens: int) -> None:
        # Times are the engine's: a client that reads slowly does not make a token late.
        now = delta.at or time.monotonic()
        if delta.cached_tokens:
            # At once: the autoscaler compares the counter with that of the prompts that arrived.
            cached, before = self.counts.cached, self.counts.cached.get(delta.request_id, 0)
            cached[delta.request_id] = max(cached.get(delta.request_id, 0), delta.cached_tokens)
            if cached[delta.request_id] > before:
                self._metrics.cached(cached[delta.request_id] - before)
        self.counts.completion += tokens
        self._metrics.generated(tokens)
        self._spans.record(delta, tokens)
        later = tokens
        if tokens and not sequence.started:
            sequence.started = True
            sequence.first_at = sequence.last_at = delta.first_at or now
            self._metrics.first_token(sequence.first_at - self._started_at, self._trace.exemplar())
            later -= 1
        if delta.started:
            if delta.explanation is not None:
                self.explanations[delta.request_id] = delta.explanation
            queued, prefill = delta.started - self._started_at, (delta.first_at or now) - delta.started
            self._metrics.prompt_done(queued, prefill, self._trace.exemplar())
        if later:
            self._metrics.next_tokens((now - sequence.last_at) / later, later)
        sequence.last_at = now

    def _finish(self, sequence: _Sequence, reason: FinishReason, delta: SequenceDelta) -> None:
        request_id = delta.request_id
        sequence.finished = True
        tokens = sequence.text.tokens
        self._spans.finished(request_id, sequence.choice % self._n, reason)
        self._metrics.finished(
            reason,
            sequence.last_at - self._started_at,
            self._trace.exemplar(),
            per_token=(sequence.last_at - sequence.first_at) / (tokens - 1) if tokens > 1 else None,
            tokens=tokens,
            decode=sequence.last_at - sequence.first_at if sequence.started else None,
        )
        self._max_tokens[request_id] = max(self._max_tokens.get(request_id, 0), tokens)
        self._unfinished[request_id] -= 1
        if not self._unfinished[request_id]:
            del self._unfinished[request_id]
            self._metrics.request_done(self._max_tokens[request_id])
            self._engine.close(request_id, abort=False)
        if reason == "error":
            if delta.form_failed:
                # Whether a form costs too much shows only while it is followed; the engine has not failed.
                message = f"the answer cannot follow its form to the end: {readable_failure(delta.error)}"
                raise InvalidRequest(message, code="invalid_output_grammar")
            raise InternalError(delta.error or "the engine failed while it generated this answer; try again")
