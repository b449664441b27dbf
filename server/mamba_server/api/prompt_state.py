"""Computes the state of a prompt, and keeps it in the cache until its reader has it or it is released.

The endpoints that hand prompts over and those that save sessions call it; the reader is another engine, or
the writer of the session file. This module writes no answers.
"""

from starlette.requests import Request
from starlette.responses import Response

from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.hand_over_headers import HAND_OVER_HEADER, parse_release
from mamba_server.api.answers.active_request import ActiveRequest
from mamba_server.api.requests.errors import AdminRefused
from mamba_server.api.serving import Serving
from mamba_server.wire import AddRequest, HandOver
from mamba_telemetry.request_trace import UNTRACED, RequestTrace
from mamba_text.sequence_text import TextVisibility
from mamba_text.tokenizer import Tokenizer

NO_HAND_OVER = HandOver("", 0, 0.0)


async def kept_state(
    serving: Serving, tokenizer: Tokenizer, add: AddRequest, trace: RequestTrace = UNTRACED
) -> tuple[HandOver, int]:
    """Compute the prompt of `add` and keep its state; return the export and the tokens that were cached.

    Raises ApiError.
    """
    hand_over = NO_HAND_OVER
    visibility = TextVisibility((), special_tokens=False, stop=False)
    active = ActiveRequest(serving.engine, tokenizer, [add], visibility, serving.metrics, trace)
    async with active:
        async for update in active.updates():
            hand_over = update.hand_over or hand_over
    return hand_over, active.counts.cached_total


class KeptStates:
    """Answers the requests to release a state that another engine was to read and will not."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def release(self, request: Request) -> Response:
        """End an export that no engine has fetched, named by the header `X-Mambaserve-Hand-Over: release=ID`.

        Raises InvalidRequest, AdminRefused.
        """
        export = parse_release(request.headers.get(HAND_OVER_HEADER.decode(), "").encode("latin-1"))
        if export is None:
            raise InvalidRequest("X-Mambaserve-Hand-Over: send 'release=ID', the export of a hand-over")
        reply = await self._serving.engine.admin("release", {"export": export})
        if reply.status >= 400:
            raise AdminRefused(reply)
        return JsonResponse(reply.body, reply.status)
