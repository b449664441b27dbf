"""The endpoints that rank documents and score pairs of texts, by the cosines of their vectors.

The vectors are those of `/v1/embeddings`, of length 1.
"""

import time
import uuid

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from mamba_api.embeddings import PooledRequest
from mamba_api.ranking import Comparison, RerankRequest, ScoreRequest
from mamba_edge.errors import InternalError
from mamba_edge.exchange.asgi_responses import send_json_pieces
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_server.api.endpoints import GeneratedResponse
from mamba_server.api.pooled_prompts import PooledAnswer, PooledPrompts
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
        vectors: dict[int, NDArray[np.float32]] = {}

        def take(place: int, numbers: bytes) -> None:
            vector = np.frombuffer(numbers, "<f4")
            length = np.linalg.norm(vector.astype(np.float64))
            if not np.isfinite(length):
                raise InternalError("the model computed a vector with infinite numbers")
            vectors[place] = (vector / (length or 1)).astype(np.float32)

        answer = await self._prompts.compute(body, texts, answer_id, context, take)
        cosines = (float(vectors[one] @ vectors[other]) for one, other in comparison.pairs)
        return [min(1.0, max(-1.0, cosine)) for cosine in cosines], answer
