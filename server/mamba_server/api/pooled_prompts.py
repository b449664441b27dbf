"""Prompts whose hidden states the engine pools, and that have no answer: what embeddings and scores share.

In all else such a request is treated like a completion: its prompts take the same places and turns in the
queue, have the same explanations, and count in the same metrics.
"""

import array
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from mamba_api.embeddings import PooledRequest, PooledTexts
from mamba_edge.errors import InternalError, NotReady
from mamba_edge.exchange.explain_header import wants_explanation
from mamba_edge.exchange.request_context import RequestContext
from mamba_server.api.adapter_table import own_salt
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ActiveRequest
from mamba_server.api.answers.requested_explanation import RequestedExplanation
from mamba_server.api.requests.cost_header import request_prices, wants_cost
from mamba_server.api.requests.prompts import PromptBuilder
from mamba_server.api.serving import ChosenModel, Serving
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_text.prompt import Prompt
from mamba_text.sequence_text import TextVisibility

Take = Callable[[int, bytes], None]
"""Function that takes the place of a text and its vector, as little-endian float32 numbers."""


@dataclass(frozen=True, slots=True)
class PooledAnswer:
    """The last fields of an answer, which follow the vectors or the scores."""

    model: str
    usage: dict[str, Any]
    vendor: responses.VendorBody | None
    """Explanation of what the prompts resumed, if requested."""

    def tail(self) -> bytes:
        """Return the fields as the end of a JSON object, from the first name to the closing brace."""
        fields: dict[str, Any] = {"model": self.model, "usage": self.usage}
        if self.vendor is not None:
            fields["mambaserve"] = self.vendor
        return msgspec.json.encode(fields)[1:]


class PooledPrompts:
    """Computes the vectors of the texts of requests to one served model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def compute(
        self, body: PooledRequest, texts: PooledTexts, answer_id: str, context: RequestContext, take: Take
    ) -> PooledAnswer:
        """Compute the vector of each text, and call `take` with each as it arrives; return the answer's end.

        Raises ApiError.
        """
        with self._serving.using(body.model) as model:
            return await self._compute_with(model, body, texts, answer_id, context, take)

    async def _compute_with(
        self,
        model: ChosenModel,
        body: PooledRequest,
        texts: PooledTexts,
        answer_id: str,
        context: RequestContext,
        take: Take,
    ) -> PooledAnswer:
        serving = self._serving
        limits, text = serving.limits(), serving.text
        if text is None:
            raise NotReady("the tokenizer is not loaded yet")
        explains = wants_explanation(context.header_values)
        with serving.admit(len(texts.inputs), 1, texts.names[-1]):
            builder = PromptBuilder(text, limits, serving.encoders, context.trace)
            prompts = await builder.of_texts(texts, body)
        adds = self._adds(body, prompts, answer_id, context, model, explains=explains)
        active = ActiveRequest(
            serving.engine, text.tokenizer, adds, TextVisibility(), serving.metrics, context.trace,
            serving.usage,
        )  # fmt: skip
        async with active:
            async for update in active.updates():
                if not update.embedding:
                    raise InternalError("the engine returned no vector")
                take(update.choice, update.embedding)
        tokens, cached = active.counts.prompt, active.counts.cached_total
        context.log_fields.update(answer=answer_id, prompt_tokens=tokens, cached_tokens=cached)
        usage: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens}
        if (cost := active.counts.cost) is not None:
            prices = request_prices(context.header_values)
            usage["engine_cost"] = responses.cost_body(cost, tokens, 0, cached, prices)
        vendor = None
        if explains:
            explanation = RequestedExplanation.of(
                text.tokenizer, adds, answer_id, context, serving.explanations, serving.keys
            )
            vendor = explanation.vendor_body(active.explanations)
        return PooledAnswer(model.name, usage, vendor)

    def _adds(
        self,
        body: PooledRequest,
        prompts: list[Prompt],
        answer_id: str,
        context: RequestContext,
        model: ChosenModel,
        *,
        explains: bool,
    ) -> list[AddRequest]:
        """Return the prompts as the engine receives them. Raises InvalidRequest."""
        client = context.client
        counts = bool(client) or self._serving.settings.anonymous_priority
        account = self._serving.usage.account(client, model.adapter_name)
        reports_cost = wants_cost(context.header_values)
        params = SamplingParams(max_tokens=0, pooling=body.pooling or self._serving.pooling)
        return [
            AddRequest(
                request_id=f"{answer_id}-{place}",
                token_ids=TokenIds(prompt.token_ids),
                params=params,
                priority=(body.priority or 0) if counts else 0,
                client=client,
                cache_salt=own_salt(body.cache_salt),
                adapter=model.adapter,
                arrival=context.arrival,
                explain=explains,
                account=account,
                reports_cost=reports_cost,
            )
            for place, prompt in enumerate(prompts)
        ]


def vector_of(numbers: bytes) -> "array.array[float]":
    """Return the vector whose float32 numbers, little-endian, the engine has sent."""
    vector = array.array("f", numbers)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
