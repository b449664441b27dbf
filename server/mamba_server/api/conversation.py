"""The conversation or prompt in the body of an admin call, which may be a chat or a completion request.

The handlers of sessions and of explanations use this module. It accepts the bodies that clients send to the
public routes of completions and chats.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request

from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.errors import InvalidRequest, NotReady
from mamba_edge.exchange.request_body import read_body
from mamba_server.api.adapter_table import own_salt
from mamba_server.api.requests.json_fields import JsonFields
from mamba_server.api.requests.prompts import PromptBuilder
from mamba_server.api.requests.request_body import require_json
from mamba_server.api.serving import Serving
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_text.prompt import Prompt

_NAMES = frozenset(ChatCompletionRequest.model_fields) | frozenset(CompletionRequest.model_fields)
_READER = JsonFields(_NAMES)


@dataclass(frozen=True, slots=True)
class TokenizedConversation:
    """The prompt of a request's body, with the facts on which its cached prefixes depend."""

    prompt: Prompt
    salt: str
    """Salt that the body names; "" = none."""
    adapter: str
    """Fingerprint of the adapter that the body names as its model; "" = the model itself."""

    def add_request(
        self,
        purpose: str,
        token_ids: list[int] | None = None,
        *,
        client: str,
        arrival: float,
        hand_over: bool = False,
    ) -> AddRequest:
        """Return the message that submits the prompt to the engine without an answer.

        Args:
            purpose: beginning of the identifier of the request.
            token_ids: the part of the prompt that is computed; None = all.
            client: name of the client.
            arrival: time of arrival, as in `AddRequest`.
            hand_over: whether the state is kept for another engine.
        """
        return AddRequest(
            request_id=f"{purpose}-{uuid.uuid4().hex}",
            token_ids=TokenIds(self.prompt.token_ids if token_ids is None else token_ids),
            params=SamplingParams(max_tokens=0),
            client=client,
            cache_salt=self.salt,
            adapter=self.adapter,
            arrival=arrival,
            hand_over=hand_over,
        )


async def read_conversation_bytes(serving: Serving, request: Request) -> bytes:
    """Return the body of a call. Raises ApiError, ClientGone."""
    settings = serving.settings
    require_json(request.headers.get("content-type"), request.headers.get("content-encoding"))
    return await read_body(
        request.scope["headers"], request.receive, settings.max_body_bytes, settings.body_timeout
    )


async def read_conversation(serving: Serving, request: Request) -> tuple[dict[str, Any], int]:
    """Return the fields of the body of a call, and its size in bytes. Raises ApiError, ClientGone."""
    body = await read_conversation_bytes(serving, request)
    return await _READER.read(body), len(body)


async def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a body that has arrived. Raises InvalidRequest."""
    return await _READER.read(body)


async def tokenized(
    serving: Serving, fields: dict[str, Any], size: int, purpose: str
) -> TokenizedConversation:
    """Return the prompt of a body of `size` bytes.

    `purpose` says, in errors, for which operation the prompt is. Raises InvalidRequest,
    RequestValidationError, NotReady, TooManyRequests.
    """
    limits, text = serving.limits(), serving.text
    if text is None:
        raise NotReady("the tokenizer is not loaded yet")
    builder = PromptBuilder(text, limits, serving.encoders)
    request: ChatCompletionRequest | CompletionRequest
    try:
        if "messages" in fields:
            request = ChatCompletionRequest.model_validate(fields)
        elif "prompt" in fields:
            request = CompletionRequest.model_validate(fields)
        else:
            raise InvalidRequest("send the conversation as 'messages', or a text as 'prompt'")
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from error
    model = serving.check_model(request.model)
    with serving.admit(1, 1):
        if isinstance(request, ChatCompletionRequest):
            prompt = await builder.of_chat(request, size)
        else:
            prompts = await builder.of_completion(request)
            if len(prompts) > 1:
                raise InvalidRequest(f"prompt: {purpose} is of one prompt; send one", param="prompt")
            prompt = prompts[0]
    return TokenizedConversation(prompt, own_salt(request.cache_salt), model.adapter)
