"""The endpoints that rank documents and score pairs of texts, by the cosines of their vectors.

The vectors are those of `/v1/embeddings`, of length 1.
"""

import math
import time
import uuid
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from mamba_api.embeddings import PooledRequest
from mamba_api.ranking import Comparison, RerankRequest, ScoreRequest
from mamba_edge.errors import InternalError
from mamba_edge.exchange.asgi_responses import send_json_pieces
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_server.api.endpoints import GeneratedResponse
from mamba_server.api.pooled_prompts import PooledAnswer, PooledPrompts, vector_of
from mamba_server.api.serving import Serving


class RankingEndpoints:
    """Answers the requests that compare texts by the vectors of one served model."""

    def __init__(self, serving: Serving) -> None:
        self._prompts = PooledPrompts(serving)

    async def rerank(self, body: RerankRequest, request: Request) -> Response:
        """Return the documents in the order of their scores, the highest first."""
        return GeneratedResponse(lambda send: self._ranked(body, context_of(request.scope), send))

    async def score(self, body: ScoreRequest, request: Request) -> Response:
        """Return the score of each pair of texts."""
        return GeneratedResponse(lambda send: self._scored(body, context_of(request.scope), send))

    async def _ranked(self, body: RerankRequest, context: RequestContext, send: Send) -> None:
        answer_id = f"rerank-{uuid.uuid4().hex}"
        scores, answer = await self._compared(body, body.comparison, answer_id, context)
        texts = body.document_texts
        places = sorted(range(len(scores)), key=lambda place: -scores[place])
        results = [
            {"index": place, "relevance_score": scores[place]}
            | ({"document": {"text": texts[place]}} if body.return_documents else {})
            for place in places[: body.top_n]
        ]
        head = msgspec.json.encode({"id": answer_id, "results": results})
        await send_json_pieces(send, [head[:-1], b",", answer.tail()])

    async def _scored(self, body: ScoreRequest, context: RequestContext, send: Send) -> None:
        answer_id = f"score-{uuid.uuid4().hex}"
        scores, answer = await self._compared(body, body.comparison, answer_id, context)
        data = [{"index": place, "object": "score", "score": score} for place, score in enumerate(scores)]
        fields = {"id": answer_id, "object": "list", "created": int(time.time()), "data": data}
        await send_json_pieces(send, [msgspec.json.encode(fields)[:-1], b",", answer.tail()])

    async def _compared(
        self, body: PooledRequest, comparison: Comparison, answer_id: str, context: RequestContext
    ) -> tuple[list[float], PooledAnswer]:
        """Return the cosine of each pair, between -1 and 1, and the end of the answer. Raises ApiError."""
        texts = comparison.texts
        vectors: dict[int, _Vector] = {}

        def take(place: int, numbers: bytes) -> None:
            vectors[place] = _Vector.of(numbers)

        answer = await self._prompts.compute(body, texts, answer_id, context, take)
        return [vectors[one].cosine(vectors[other]) for one, other in comparison.pairs], answer


class _Vector(NamedTuple):
    """A vector of a text. numpy would stay in the memory of this process for these few operations."""

    numbers: tuple[float, ...]
    length: float

    @classmethod
    def of(cls, raw: bytes) -> "_Vector":
        """Return the vector of float32 numbers, little-endian. Raises InternalError if any is infinite."""
        numbers = vector_of(raw)
        length = math.hypot(*numbers)
        if not math.isfinite(length):
            raise InternalError("the model computed a vector with infinite numbers")
        return cls(tuple(numbers), length)

    def cosine(self, other: "_Vector") -> float:
        """Return the cosine of the angle between two vectors; 0 if one of them has no length."""
        if not self.length or not other.length:
            return 0.0
        # By the law of cosines: the distance is computed without a loop in Python.
        apart = math.dist(self.numbers, other.numbers)
        product = (self.length**2 + other.length**2 - apart**2) / (2 * self.length * other.length)
        return min(1.0, max(-1.0, product))
