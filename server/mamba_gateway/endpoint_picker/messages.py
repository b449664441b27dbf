"""The messages that the picker sends to the proxy. Pure.

Proposal 004 of the Gateway API Inference Extension defines the names of the keys and namespaces.
"""

from collections.abc import Iterable, Iterator, Sequence

from mamba_edge.error_forms import OPENAI, ErrorForm
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
"""Header with the chosen `host:port`, followed by fallbacks; also the key in the metadata namespace
`DESTINATION_NAMESPACE`."""
DESTINATION_NAMESPACE = "envoy.lb"
SERVED = "x-gateway-destination-endpoint-served"
"""Key in the same namespace of an answer: address of the engine that served the request."""
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
MAX_CHUNK_BYTES = 62_000
"""Maximum size in bytes of a part of a body in one message; proxies accept at most 64 KiB."""

SetHeaders = Iterable[tuple[str, bytes]]


def destination(addresses: Sequence[str]) -> Struct:
    """Return metadata with the chosen addresses. Some proxies read these, others the header."""
    metadata = Struct()
    metadata.update({DESTINATION_NAMESPACE: {DESTINATION: ",".join(addresses)}})
    return metadata


def header_mutation(put: SetHeaders, removed: Iterable[str] = ()) -> HeaderMutation:
    """Return the change that sets headers, in place of those with the same name, and removes others."""
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
    """Return the choice as the response to a message with the request's headers."""
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    return ProcessingResponse(
        request_headers=HeadersResponse(response=common), dynamic_metadata=destination(addresses)
    )


def picked_by_body(mutation: HeaderMutation, addresses: Sequence[str]) -> ProcessingResponse:
    """Return the choice as the response to a message with the whole body, before the headers are sent."""
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    return ProcessingResponse(
        request_body=BodyResponse(response=common), dynamic_metadata=destination(addresses)
    )


def streamed_request(body: bytes, *, ends: bool) -> Iterator[ProcessingResponse]:
    """Yield the unchanged body of the request in parts. `ends`: the last part ends the stream."""
    for begin in range(0, max(1, len(body)), MAX_CHUNK_BYTES):
        last = begin + MAX_CHUNK_BYTES >= len(body)
        yield ProcessingResponse(request_body=_streamed(body[begin : begin + MAX_CHUNK_BYTES], ends and last))


def streamed_answer(chunk: bytes, *, ends: bool) -> Iterator[ProcessingResponse]:
    """Yield a part of the answer, unchanged; `ends` says that it is the last one."""
    for begin in range(0, max(1, len(chunk)), MAX_CHUNK_BYTES):
        last = begin + MAX_CHUNK_BYTES >= len(chunk)
        yield ProcessingResponse(
            response_body=_streamed(chunk[begin : begin + MAX_CHUNK_BYTES], ends and last)
        )


def _streamed(body: bytes, ends: bool) -> BodyResponse:
    streamed = StreamedBodyResponse(body=body, end_of_stream=ends)
    return BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))


def unchanged(kind: str) -> ProcessingResponse:
    """Return the response that changes nothing, to a message of this kind (a field of ProcessingRequest)."""
    responses = {"headers": HeadersResponse, "body": BodyResponse, "trailers": TrailersResponse}
    return ProcessingResponse(**{kind: responses[kind.rpartition("_")[2]]()})


def answer_headers(put: SetHeaders) -> ProcessingResponse:
    """Return the response that adds headers to the headers of the answer."""
    common = CommonResponse(header_mutation=header_mutation(put))
    return ProcessingResponse(response_headers=HeadersResponse(response=common))


def refusal(
    error: ApiError, request_id: str, more: Iterable[tuple[str, bytes]] = (), form: ErrorForm = OPENAI
) -> ProcessingResponse:
    """Return the error as the answer to the client, with `more` headers, in the form of the requested API."""
    own = {"content-type": "application/json", "x-request-id": request_id}
    # This header is left out: the proxy decides when to close the connection to its client.
    passed = {name: value for name, value in error.headers().items() if name != "connection"}
    headers = [(name, value.encode()) for name, value in {**own, **passed}.items()]
    headers += more
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=header_mutation(headers),
            body=form.envelope(error, request_id),
            details=f"mambaserve_{error.code or error.kind}",
        )
    )
