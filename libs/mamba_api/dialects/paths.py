"""The paths that generate or count tokens, and the translation of their bodies into a chat request. Pure."""

from typing import Any

from mamba_api.dialects.messages_chat import chat_of_messages
from mamba_api.dialects.messages_request import CountTokensRequest, MessagesRequest
from mamba_api.dialects.responses_chat import chat_of_responses
from mamba_api.dialects.responses_request import ResponsesRequest
from mamba_api.openai import ChatCompletionRequest

COMPLETIONS, CHAT_COMPLETIONS = "/v1/completions", "/v1/chat/completions"
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
RERANK, RERANK_V2, SCORE = "/v1/rerank", "/v2/rerank", "/v1/score"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
GENERATING = frozenset((COMPLETIONS, CHAT_COMPLETIONS, MESSAGES, RESPONSES))
"""Paths whose answers a model writes."""
FREE = frozenset((COUNT_TOKENS, TOKENIZE, DETOKENIZE))
"""Paths for which a model computes nothing, so that no key is charged for them."""
RELAYED = GENERATING | FREE | {EMBEDDINGS, RERANK, RERANK_V2, SCORE}
"""Paths that a gateway passes on to an engine."""
TEXT_FIELDS = {
    COMPLETIONS: ("prompt",),
    CHAT_COMPLETIONS: ("messages",),
    MESSAGES: ("system", "tools", "messages"),
    RESPONSES: ("instructions", "tools", "input"),
}
"""Fields of each generating path that its prompt is written from, in the order of templates."""


def chat_request(path: str, fields: Any) -> ChatCompletionRequest:
    """Return the chat request that means the same as the JSON body `fields` of a request to `path`.

    `path` is `CHAT_COMPLETIONS`, `MESSAGES`, `COUNT_TOKENS` or `RESPONSES`. The body for any other path is
    read as that of `CHAT_COMPLETIONS`. Raises pydantic's ValidationError.
    """
    if path == MESSAGES:
        return chat_of_messages(MessagesRequest.model_validate(fields))
    if path == COUNT_TOKENS:
        return chat_of_messages(CountTokensRequest.model_validate(fields))
    if path == RESPONSES:
        return chat_of_responses(ResponsesRequest.model_validate(fields))
    return ChatCompletionRequest.model_validate(fields)
