"""The messages of external processing that the picker sends. Pure; protocol 004 names keys and namespaces."""

from collections.abc import Iterable, Iterator, Sequence

from mamba_edge.errors import ApiError
from mamba_gateway.endpoint_picker.ext_proc import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    Struct,
    TrailersResponse,
)

DESTINATION = "x-gateway-destination-endpoint"
"""Header, and key in the namespace `DESTINATION_NAMESPACE`: `host:port`, fallbacks after it."""
DESTINATION_NAMESPACE = "envoy.lb"
SERVED = "x-gateway-destination-endpoint-served"
"""Key in the same namespace of an answer: who gave it."""
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
MOST_CHUNK = 62_000
"""Bytes of a body in one message; proxies take 64 KiB at most."""

SetHeaders = Iterable[tuple[str, bytes]]


def destination(addresses: Sequence[str]) -> Struct:
    """The metadata that say where to; the same as the header, which some proxies do not read."""
    made = Struct()
    made.update({DESTINATION_NAMESPACE: {DESTINATION: ",".join(addresses)}})
    return made


def header_mutation(put: SetHeaders, removed: Iterable[str] = ()) -> HeaderMutation:
    """Headers in the place of those of the same name, and without those `removed`."""
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(
                header=HeaderValue(key=name, raw_value=value),
                append_action=HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name, value in put
        ],
        remove_headers=sorted(set(removed)),
    )


def picked_by_headers(mutation: HeaderMutation, addresses: Sequence[str]) -> ProcessingResponse:
    """The choice, as the answer to the request's headers."""
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    return ProcessingResponse(
        request_headers=HeadersResponse(response=common), dynamic_metadata=destination(addresses)
    )


def picked_by_body(mutation: HeaderMutation, addresses: Sequence[str]) -> ProcessingResponse:
    """The choice, as the answer to a whole body whose headers still wait."""
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    return ProcessingResponse(
        request_body=BodyResponse(response=common), dynamic_metadata=destination(addresses)
    )


def streamed_request(body: bytes, *, ends: bool) -> Iterator[ProcessingResponse]:
    """The body as it came, in pieces; with `ends` the last one ends the stream."""
    for at in range(0, max(1, len(body)), MOST_CHUNK):
        last = at + MOST_CHUNK >= len(body)
        yield ProcessingResponse(request_body=_streamed(body[at : at + MOST_CHUNK], ends and last))


def streamed_answer(chunk: bytes, *, ends: bool) -> Iterator[ProcessingResponse]:
    """A piece of the answer, as it came."""
    for at in range(0, max(1, len(chunk)), MOST_CHUNK):
        last = at + MOST_CHUNK >= len(chunk)
        yield ProcessingResponse(response_body=_streamed(chunk[at : at + MOST_CHUNK], ends and last))


def _streamed(body: bytes, ends: bool) -> BodyResponse:
    streamed = StreamedBodyResponse(body=body, end_of_stream=ends)
    return BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))


def unchanged(kind: str) -> ProcessingResponse:
    """Go on as it is, in answer to a message of this kind (a field of ProcessingRequest)."""
    made = {"headers": HeadersResponse, "body": BodyResponse, "trailers": TrailersResponse}
    return ProcessingResponse(**{kind: made[kind.rpartition("_")[2]]()})


def answer_headers(put: SetHeaders) -> ProcessingResponse:
    """The answer's headers with more."""
    common = CommonResponse(header_mutation=header_mutation(put))
    return ProcessingResponse(response_headers=HeadersResponse(response=common))


def refusal(error: ApiError, request_id: str, more: Iterable[tuple[str, bytes]] = ()) -> ProcessingResponse:
    """The error as the client's answer, in the OpenAI envelope; with `more` headers."""
    own = {"content-type": "application/json", "x-request-id": request_id}
    # Connections are the proxy's: it decides when one is closed.
    told = {name: value for name, value in error.headers().items() if name != "connection"}
    headers = [(name, value.encode()) for name, value in {**own, **told}.items()]
    headers += more
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=header_mutation(headers),
            body=error.envelope(),
            details=f"mambaserve_{error.code or error.kind}",
        )
    )
