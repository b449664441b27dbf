"""Builds the answer of `POST /v1/completions` from updates, complete or in chunks. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from mamba_api.openai import CompletionRequest
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.responses import CompletionBody, CompletionChoiceBody, UsageBody
from mamba_server.api.answers.score_json import (
    LongParts,
    completion_scores,
    join_pieces,
    let_go,
    prompt_scores,
)
from mamba_server.api.answers.stream_frame import StreamFrame
from mamba_server.wire import FinishReason, TokenLogprobs
from mamba_text.tokenizer import Tokenizer


@dataclass(slots=True)
class _CompletionChoice:
    """Holds what one choice has gained that is not encoded yet."""

    text: list[str] = field(default_factory=list)
    offset: int = 0
    """Number of characters of the tokens whose log-probabilities were encoded."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class CompletionResponseBuilder(StreamFrame):
    """Encodes the chunks of one completion's answer, or the whole answer.

    `prompts`: token ids and text of each prompt, in order.
    """

    def __init__(
        self,
        request: CompletionRequest,
        tokenizer: Tokenizer,
        prompts: list[tuple[list[int], str]],
        *,
        response_id: str,
        created: int,
        model: str,
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._id, self._created, self._model = response_id, created, model
        self._n = request.n or 1
        self._prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}
        """Log-probabilities of prompts, by index of the prompt; one of its choices brings them."""
        self._begun: Counter[int] = Counter()
        """Number of choices whose first event, which has the prompt's scores, was encoded; by prompt."""
        self._sealed: dict[int, list[bytes]] = {}
        """JSON of finished choices, in pieces."""
        self._choices = [_CompletionChoice() for _ in range(self._n * len(prompts))]

    def chunk(
        self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool
    ) -> bytes | list[bytes] | None:
        """Encode one update, in pieces if it is long; None if it brings nothing that can be sent."""
        self._add(update)
        choice = self._choices[update.choice]
        parts = LongParts()
        body = self._choice_body(
            update.choice, choice, parts, first=update.first, finish=update.finish_reason
        )
        choice.text, choice.token_ids, choice.logprobs = [], [], []
        if update.first:
            self._begun[prompt := update.choice // self._n] += 1
            if self._begun[prompt] == self._n:
                let_go(self._prompt_logprobs.pop(prompt, []))
        has_details = bool(update.token_ids) and self._sends_details
        describes_prompt = body.prompt_logprobs is not UNSET or body.prompt_token_ids is not UNSET
        if not (body.text or body.finish_reason or has_details or describes_prompt):
            return None
        return join_pieces(
            parts.insert_parts(responses.event(self._body([body], usage if with_usage else UNSET)))
        )

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """Encode the event after the last choice."""
        return responses.event(self._body([], usage))

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `full`."""
        self._add(update)

    def weight(self, update: ChoiceUpdate) -> int:
        """Estimate how many log-probabilities have to be encoded with `update` or the choice it ends."""
        scores = len(self._prompt_logprobs.get(update.choice // self._n, update.prompt_logprobs or ()))
        from_prompt = scores if update.first or update.finish_reason is not None else 0
        entries = from_prompt + len(self._choices[update.choice].logprobs) + len(update.logprobs or ())
        return entries * (1 + max(self._request.logprobs or 0, self._request.prompt_logprobs or 0))

    def seal(self, index: int) -> None:
        """Encode a finished choice, and drop its tokens and log-probabilities."""
        choice = self._choices[index]
        parts = LongParts()
        body = self._choice_body(index, choice, parts, first=True, finish=choice.finish_reason)
        self._sealed[index] = parts.insert_parts(responses.encode(body))
        self._choices[index] = _CompletionChoice()
        first = index - index % self._n
        if all(choice_index in self._sealed for choice_index in range(first, first + self._n)):
            let_go(self._prompt_logprobs.pop(index // self._n, []))

    def full(self, usage: UsageBody) -> list[bytes]:
        """Encode the complete answer, in pieces."""
        head, place, tail = responses.encode(self._body([], usage)).partition(b'"choices":[]')
        assert place
        pieces = [head + b'"choices":[']
        for index in range(len(self._choices)):
            if index not in self._sealed:
                self.seal(index)
            pieces += [*self._sealed.pop(index), b","]
        return [*pieces[:-1], b"]" + tail]

    @property
    def _sends_details(self) -> bool:
        """Whether chunks have the tokens, or their log-probabilities, of text that is held back."""
        return self._request.logprobs is not None or bool(self._request.return_token_ids)

    def _add(self, update: ChoiceUpdate) -> None:
        choice = self._choices[update.choice]
        choice.finish_reason = update.finish_reason
        if update.prompt_logprobs is not None:
            self._prompt_logprobs[update.choice // self._n] = update.prompt_logprobs
        choice.text.append(update.text)
        choice.token_ids += update.token_ids
        choice.logprobs += update.logprobs or ()

    def _choice_body(
        self,
        index: int,
        choice: _CompletionChoice,
        parts: LongParts,
        *,
        first: bool,
        finish: FinishReason | None,
    ) -> CompletionChoiceBody:
        prompt_token_ids, prompt_text = self._prompts[index // self._n]
        scores = self._prompt_logprobs.get(index // self._n)
        text = "".join(choice.text)
        token_ids, entries = choice.token_ids, choice.logprobs
        if first and self._request.echo:
            text = prompt_text + text
            if scores is not None:
                token_ids, entries = prompt_token_ids + token_ids, scores + entries
        body = CompletionChoiceBody(index, text, finish_reason=choice.finish_reason if finish else None)
        if self._request.logprobs is not None and len(entries) == len(token_ids):
            tokenizer, special = self._tokenizer, self._request.skip_special_tokens is False
            body.logprobs = completion_scores(
                tokenizer, token_ids, entries, choice.offset, parts, special=special
            )
            choice.offset += sum(
                responses.text_length(tokenizer, token_id, special=special) for token_id in token_ids
            )
        if self._request.prompt_logprobs is not None and first and scores is not None:
            body.prompt_logprobs = prompt_scores(self._tokenizer, scores, parts)
        if self._request.return_token_ids:
            body.token_ids = list(choice.token_ids)
            if first:
                body.prompt_token_ids = prompt_token_ids
        return body

    def _body(
        self, choices: list[CompletionChoiceBody], usage: UsageBody | UnsetType | None
    ) -> CompletionBody:
        vendor = self.vendor if not choices or choices[0].finish_reason is not None else UNSET
        return CompletionBody(self._id, self._created, self._model, choices, usage=usage, mambaserve=vendor)
