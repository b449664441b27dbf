"""The endpoint of embeddings: prompts whose hidden states the engine pools, and no answer.

FastAPI routes call `EmbeddingsEndpoint`. Prompts, places, turns and metrics are those of completions.
"""

import array
import base64
import math
import sys
import uuid
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mamba_api.embeddings import EmbeddingsRequest
from mamba_api.openai import CompletionRequest
from mamba_edge.errors import InternalError, InvalidRequest, NotReady
from mamba_edge.exchange.asgi_responses import send_json_pieces, while_connected
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_server.api.adapter_table import own_salt
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ActiveRequest
from mamba_server.api.requests.cost_header import request_prices, wants_cost
from mamba_server.api.requests.errors import ContextTooLong
from mamba_server.api.requests.prompts import PromptBuilder
from mamba_server.api.serving import ChosenModel, Serving
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_text.prompt import Prompt
from mamba_text.sequence_text import TextVisibility

NUMBER_BYTES = 12
"""Approximate size of one number in the JSON of an answer."""


class _Embedded(Response):
    """Sends vectors by ASGI itself, and ends the work for them when the client disconnects."""

    def __init__(
        self, endpoint: "EmbeddingsEndpoint", body: EmbeddingsRequest, context: RequestContext
    ) -> None:
        self._endpoint, self._body, self._context = endpoint, body, context
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._endpoint.answer(self._body, self._context, send))


class EmbeddingsEndpoint:
    """Answers the requests for embeddings of one served model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def embeddings(self, body: EmbeddingsRequest, request: Request) -> Response:
        """Return a vector for each text, from the hidden states of its tokens."""
        return _Embedded(self, body, context_of(request.scope))

    async def answer(self, body: EmbeddingsRequest, context: RequestContext, send: Send) -> None:
        """Compute the vectors and send them."""
        with self._serving.using(body.model) as model:
            await self._answer_with(model, body, context, send)

    async def _answer_with(
        self, model: ChosenModel, body: EmbeddingsRequest, context: RequestContext, send: Send
    ) -> None:
        serving = self._serving
        limits, text = serving.limits(), serving.text
        if text is None:
            raise NotReady("the tokenizer is not loaded yet")
        with serving.admit(len(body.inputs), 1):
            builder = PromptBuilder(text, limits, serving.encoders, context.trace)
            prompts = await builder.of_completion(_completion(body))
        for prompt in prompts:
            if len(prompt.token_ids) > limits.max_model_len:
                raise ContextTooLong(
                    f"This model's maximum context length is {limits.max_model_len} tokens, and an input has "
                    f"{len(prompt.token_ids)}. Shorten it.",
                    param="input",
                )
        adds = self._adds(body, prompts, context, model)
        visibility = TextVisibility()
        active = ActiveRequest(
            serving.engine, text.tokenizer, adds, visibility, serving.metrics, context.trace, serving.usage
        )
        vectors: list[bytes] = [b""] * len(adds)
        async with active:
            async for update in active.updates():
                vectors[update.choice] = _encoded(update.embedding, update.choice, body)
        tokens = active.counts.prompt
        context.log_fields.update(prompt_tokens=tokens, cached_tokens=active.counts.cached_total)
        usage: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens}
        if (cost := active.counts.cost) is not None:
            cached, prices = active.counts.cached_total, request_prices(context.header_values)
            usage["engine_cost"] = responses.cost_body(cost, tokens, 0, cached, prices)
        rest = {"model": model.name, "usage": usage}
        pieces = [b'{"object":"list","data":[']
        for number, vector in enumerate(vectors):
            pieces.append(b"," + vector if number else vector)
        pieces.append(b"]," + msgspec.json.encode(rest)[1:])
        await send_json_pieces(send, pieces)

    def _adds(
        self, body: EmbeddingsRequest, prompts: list[Prompt], context: RequestContext, model: ChosenModel
    ) -> list[AddRequest]:
        """Return the prompts as the engine receives them. Raises InvalidRequest."""
        client, name = context.client, f"embd-{uuid.uuid4().hex}"
        counts = bool(client) or self._serving.settings.anonymous_priority
        account = self._serving.usage.account(client, model.adapter_name)
        reports_cost = wants_cost(context.header_values)
        params = SamplingParams(max_tokens=0, pooling=body.pooling or self._serving.pooling)
        return [
            AddRequest(
                request_id=f"{name}-{place}",
                token_ids=TokenIds(prompt.token_ids),
                params=params,
                priority=(body.priority or 0) if counts else 0,
                client=client,
                cache_salt=own_salt(body.cache_salt),
                adapter=model.adapter,
                arrival=context.arrival,
                account=account,
                reports_cost=reports_cost,
            )
            for place, prompt in enumerate(prompts)
        ]


def _completion(body: EmbeddingsRequest) -> CompletionRequest:
    """Return the request for a completion that has the inputs as its prompts, which are tokenized alike."""
    return CompletionRequest(
        prompt=body.input,
        add_special_tokens=body.add_special_tokens,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )


def _encoded(numbers: bytes, index: int, body: EmbeddingsRequest) -> bytes:
    """Return the JSON of one vector. Raises InvalidRequest, InternalError."""
    vector = array.array("f", numbers)
    if sys.byteorder == "big":
        vector.byteswap()
    if not vector:
        raise InternalError("the engine returned no vector")
    if body.dimensions is not None:
        if body.dimensions > len(vector):
            raise InvalidRequest(
                f"dimensions: the vectors of this model have {len(vector)}", param="dimensions"
            )
        vector = vector[: body.dimensions]
    if body.normalize is not False:
        length = math.hypot(*vector)
        vector = array.array("f", (number / length for number in vector)) if length else vector
    numbers_or_text: list[float] | str = vector.tolist()
    if body.encoding_format == "base64":
        if sys.byteorder == "big":
            vector.byteswap()
        numbers_or_text = base64.b64encode(vector.tobytes()).decode()
    return msgspec.json.encode({"object": "embedding", "index": index, "embedding": numbers_or_text})
