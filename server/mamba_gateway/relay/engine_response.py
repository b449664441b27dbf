"""An engine's answer on its way to the client: what its bytes say, and how one ends that broke off.

Used by the relay, which alone knows of engines and attempts.
"""

import asyncio

from starlette.types import Send

from mamba_edge.errors import ApiError
from mamba_gateway.errors import CUT_SHORT, SILENT, UpstreamIdleTimeout, UpstreamLost
from mamba_gateway.headers import is_event_stream, to_client
from mamba_gateway.relay.client_response import ERROR_EVENT_SECONDS
from mamba_gateway.relay.events import EventAligner
from mamba_gateway.upstream.request import UpstreamRequest
from mamba_gateway.upstream.response import IdleTimeout, Pair, UpstreamResponse
from mamba_telemetry.request_trace import SpanNote

ERROR_EVENT = b'data: {"error":'
"""How the last event of a stream begins that failed; within an answer's text the quotes have backslashes."""
CLIENTS_MISTAKE = b'"invalid_request_error"'
"""In such an event: the request could not be answered by any engine."""


class ResponseTruncated(Exception):
    """The answer broke off and its framing has no room for an error: the connection has to be closed."""


def send_whole(response: UpstreamResponse, part: bytes, send: Send, added: tuple[Pair, ...]) -> bool:
    """Pass on an answer that is here already and no stream, where the client's side can without a wait."""
    begin = getattr(send, "begin", None)
    if begin is None or not response.complete or is_event_stream(response.headers):
        return False
    told: bool = begin(response.status, [*to_client(response.headers), *added], part, False)
    return told


def record_chunk(
    chunk: bytes, request: UpstreamRequest, response: UpstreamResponse, span: SpanNote
) -> bool | None:
    """What the bytes say of the answer: whether it failed on the way; None = by a mistake of the client."""
    if request.meter is not None and response.status == 200:
        request.meter.feed(chunk)
    if ERROR_EVENT not in chunk:
        return False
    span.fail("error_event")
    return None if CLIENTS_MISTAKE in chunk else True


def upstream_error(error: Exception) -> ApiError:
    if isinstance(error, IdleTimeout):
        return UpstreamIdleTimeout(SILENT)
    return UpstreamLost(CUT_SHORT)


async def end_broken_stream(aligner: EventAligner | None, error: ApiError, send: Send) -> None:
    if aligner is None:
        raise ResponseTruncated from error
    try:
        async with asyncio.timeout(ERROR_EVENT_SECONDS):
            await send({"type": "http.response.body", "body": aligner.terminate(error), "more_body": False})
    except TimeoutError:
        # A client that has stopped reading does not get to keep the request.
        raise ResponseTruncated from error
