"""Every field that the official clients can send is honoured, ignored on purpose, or refused by its name."""

from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import BaseModel, ValidationError

from mamba_api.dialects.messages_request import CountTokensRequest, MessagesRequest
from mamba_api.dialects.responses_request import ResponsesRequest
from mamba_api.embeddings import EmbeddingsRequest
from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_api.openai_fields import NOT_SUPPORTED

CHAT = {"messages": [{"role": "user", "content": "x"}]}
BODIES: list[tuple[Any, type[BaseModel], dict[str, Any], set[str]]] = [
    (chat_create_params.CompletionCreateParamsBase, ChatCompletionRequest, CHAT, set(NOT_SUPPORTED)),
    (
        completion_create_params.CompletionCreateParamsBase, CompletionRequest, {"prompt": "x"},
        set(NOT_SUPPORTED),
    ),
    (response_create_params.ResponseCreateParamsBase, ResponsesRequest, {"input": "x"}, set()),
    (message_create_params.MessageCreateParamsBase, MessagesRequest, {**CHAT, "max_tokens": 1}, set()),
    (beta_message_create_params.MessageCreateParamsBase, MessagesRequest, {**CHAT, "max_tokens": 1}, set()),
    (embedding_create_params.EmbeddingCreateParams, EmbeddingsRequest, {"input": "x"}, set()),
    (message_count_tokens_params.MessageCountTokensParams, CountTokensRequest, CHAT, set()),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "model", "body", "refused"), BODIES)
def test_every_field_of_the_client_is_known(
    fields: Any, model: type[BaseModel], body: dict[str, Any], refused: set[str]
) -> None:
    refused |= set(getattr(model, "REFUSED_FIELDS", ()))
    ignored = set(getattr(model, "IGNORED_FIELDS", ()))
    assert set(fields.__annotations__) <= set(model.model_fields) | refused | ignored
    for name in refused:
        with pytest.raises(ValidationError, match=name):
            model.model_validate({**body, name: {"some": "value"}})
    for name in ignored:
        model.model_validate({**body, name: {"some": "value"}})


@pytest.mark.parametrize(
    ("model", "body", "name"),
    [
        (ChatCompletionRequest, {**CHAT, "service_tier": "auto", "verbosity": "medium"}, ""),
        (ChatCompletionRequest, {**CHAT, "service_tier": "priority"}, "service_tier"),
        (ChatCompletionRequest, {**CHAT, "verbosity": "low"}, "verbosity"),
        (ChatCompletionRequest, {**CHAT, "reasoning": {"exclude": True}}, "exclude"),
        (
            ChatCompletionRequest,
            {**CHAT, "reasoning": {"max_tokens": 1}, "thinking_token_budget": 2},
            "reasoning",
        ),
        (ChatCompletionRequest, {**CHAT, "allowed_token_ids": []}, "allowed_token_ids"),
        (ChatCompletionRequest, {**CHAT, "bad_words": [""]}, "bad_words"),
        (MessagesRequest, {**CHAT, "max_tokens": 1, "speed": "fast"}, "speed"),
        (
            MessagesRequest,
            {**CHAT, "max_tokens": 1, "thinking": {"type": "disabled", "budget_tokens": 5}},
            "budget_tokens",
        ),
    ],
)
def test_a_value_that_would_change_the_answer_is_refused(
    model: type[BaseModel], body: dict[str, Any], name: str
) -> None:
    if not name:
        model.model_validate(body)
        return
    with pytest.raises(ValidationError, match=name):
        model.model_validate(body)
