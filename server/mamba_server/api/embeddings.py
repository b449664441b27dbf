"""The endpoint of embeddings: the vector of each text as JSON."""

import array
import base64
import math
import sys
import uuid

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from mamba_api.embeddings import EmbeddingsRequest
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.asgi_responses import send_json_pieces
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_server.api.endpoints import GeneratedResponse
from mamba_server.api.pooled_prompts import PooledPrompts, vector_of
from mamba_server.api.serving import Serving


class EmbeddingsEndpoint:
    """Answers the requests for embeddings of one served model."""

    def __init__(self, serving: Serving) -> None:
        self._prompts = PooledPrompts(serving)

    async def embeddings(self, body: EmbeddingsRequest, request: Request) -> Response:
        """Return a vector for each text, from the hidden states of its tokens."""
        return GeneratedResponse(lambda send: self._answer(body, context_of(request.scope), send))

    async def _answer(self, body: EmbeddingsRequest, context: RequestContext, send: Send) -> None:
        """Compute the vectors and send them."""
        vectors: list[bytes] = [b""] * len(body.inputs)

        def take(place: int, numbers: bytes) -> None:
            vectors[place] = _encoded(numbers, place, body)

        answer_id = f"embd-{uuid.uuid4().hex}"
        answer = await self._prompts.compute(body, body.texts, answer_id, context, take)
        pieces = [b'{"object":"list","data":[']
        for number, vector in enumerate(vectors):
            pieces.append(b"," + vector if number else vector)
        await send_json_pieces(send, [*pieces, b"],", answer.tail()])


def _encoded(numbers: bytes, index: int, body: EmbeddingsRequest) -> bytes:
    """Return the JSON of one vector. Raises InvalidRequest."""
    vector = vector_of(numbers)
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
