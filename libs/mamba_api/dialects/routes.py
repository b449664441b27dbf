"""The routes that engine and gateway both describe: body, answer and events of each relayed path. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from mamba_api.dialects.messages_answer import (
    MessagesErrorEnvelope,
    MessagesEvent,
    MessagesResponse,
    TokenCount,
)
from mamba_api.dialects.messages_request import CountTokensRequest, MessagesRequest
from mamba_api.dialects.paths import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RERANK_V2,
    RESPONSES,
    SCORE,
    TOKENIZE,
)
from mamba_api.dialects.responses_answer import ResponsesEvent, ResponsesResponse
from mamba_api.dialects.responses_request import ResponsesRequest
from mamba_api.embeddings import (
    DetokenizeRequest,
    DetokenizeResponse,
    EmbeddingsRequest,
    EmbeddingsResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from mamba_api.openai import ChatCompletionRequest, CompletionRequest, ErrorEnvelope
from mamba_api.openai_responses import ChatCompletionChunk, ChatCompletionResponse, CompletionResponse
from mamba_api.ranking import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse

_CHUNKS = "The complete answer; with `stream`, events that hold its chunks, then [DONE]"
_EVENTS = "The complete answer; with `stream`, the events of its parts"


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """One relayed path as documents describe it."""

    body: type[BaseModel]
    answer: type[BaseModel]
    summary: str
    event: type[BaseModel] | None = None
    """Data of an event of a streamed answer; None = answers are never streamed."""
    error: type[BaseModel] = ErrorEnvelope
    """Body of answers with a status of 400 or more."""
    answer_summary: str = _EVENTS
    other_name: str = ""
    """Name of the operation, where another path has the same body; "" = that of the body."""

    @property
    def name(self) -> str:
        """Name of the operation in documents."""
        return self.other_name or self.body.__name__

    @property
    def ends_with_done(self) -> bool:
        """Whether `[DONE]` ends a stream, and errors in it are envelopes of their own."""
        return self.error is ErrorEnvelope and self.answer_summary is _CHUNKS


ROUTES: Mapping[str, RouteDescription] = {
    COMPLETIONS: RouteDescription(
        CompletionRequest,
        CompletionResponse,
        "Complete a prompt",
        CompletionResponse,
        answer_summary=_CHUNKS,
    ),
    CHAT_COMPLETIONS: RouteDescription(
        ChatCompletionRequest,
        ChatCompletionResponse,
        "Answer a conversation",
        ChatCompletionChunk,
        answer_summary=_CHUNKS,
    ),
    MESSAGES: RouteDescription(
        MessagesRequest,
        MessagesResponse,
        "Answer a conversation, in the format of Anthropic's API",
        MessagesEvent,
        MessagesErrorEnvelope,
    ),
    COUNT_TOKENS: RouteDescription(
        CountTokensRequest,
        TokenCount,
        "Count the tokens of a prompt, in the format of Anthropic's API",
        error=MessagesErrorEnvelope,
        answer_summary="The number of tokens",
    ),
    RESPONSES: RouteDescription(
        ResponsesRequest,
        ResponsesResponse,
        "Answer a conversation, in the format of the Responses API",
        ResponsesEvent,
    ),
    EMBEDDINGS: RouteDescription(
        EmbeddingsRequest, EmbeddingsResponse, "Vectors of texts", answer_summary="A vector for each input"
    ),
    RERANK: RouteDescription(
        RerankRequest,
        RerankResponse,
        "Documents in the order of their likeness to a query",
        answer_summary="A score for each document, the highest first",
    ),
    RERANK_V2: RouteDescription(
        RerankRequest,
        RerankResponse,
        "Documents in the order of their likeness, at the path that Cohere's clients use",
        answer_summary="A score for each document, the highest first",
        other_name="RerankRequestV2",
    ),
    SCORE: RouteDescription(
        ScoreRequest, ScoreResponse, "Likeness of pairs of texts", answer_summary="A score for each pair"
    ),
    TOKENIZE: RouteDescription(
        TokenizeRequest, TokenizeResponse, "Token ids of a text", answer_summary="The token ids"
    ),
    DETOKENIZE: RouteDescription(
        DetokenizeRequest, DetokenizeResponse, "Text of token ids", answer_summary="The text"
    ),
}
EVENTS: Mapping[str, type[BaseModel]] = {
    path: route.event for path, route in ROUTES.items() if route.event is not None
}
"""Data of events, for paths whose answers can be streamed."""
BODIES: Mapping[str, type[BaseModel]] = {path: route.body for path, route in ROUTES.items()}
"""Body of each path."""
