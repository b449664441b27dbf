"""The beginning of a stream: the headers of the request, the engines that may serve it, and its body mode."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mamba_edge.exchange.request_body import find_header
from mamba_edge.exchange.request_middleware import request_id_of
from mamba_gateway.endpoint_picker.ext_proc import ProcessingMode, ProcessingRequest
from mamba_gateway.endpoint_picker.messages import DESTINATION_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE

BodyMode = Literal["streamed", "buffered", "unseen"]
"""streamed: the body is sent without waiting for the answer to the headers, and has to be sent back;
buffered: it is sent whole once the headers are answered; unseen: it is not sent in time for the choice."""
_MODES: dict[int, BodyMode] = {
    ProcessingMode.BodySendMode.FULL_DUPLEX_STREAMED: "streamed",
    ProcessingMode.BodySendMode.BUFFERED: "buffered",
}


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Facts about one request that the first message of the proxy contains."""

    headers: tuple[tuple[bytes, bytes], ...]
    """Headers with names in lower case. The names of pseudo headers begin with a colon."""
    ended: bool
    """Whether the request has no body."""
    body_mode: BodyMode
    streams_answer: bool
    """Whether the picker has to send back each part of the answer; otherwise the picker only reads it."""
    allowed_addresses: frozenset[str] | None
    """Addresses of the engines that may serve the request; None = all may."""
    request_id: str

    @classmethod
    def of(cls, message: ProcessingRequest) -> "RequestHead":
        """Read the first message of a stream, which has the headers of the request."""
        headers = tuple(headers_of(message.request_headers.headers))
        body_mode: BodyMode = "streamed"
        streams_answer = True
        if message.HasField("protocol_config"):  # otherwise: the mode that the protocol requires
            config = message.protocol_config
            body_mode = _MODES.get(config.request_body_mode, "unseen")
            streams_answer = _MODES.get(config.response_body_mode) == "streamed"
        ended = message.request_headers.end_of_stream
        return cls(
            headers,
            ended,
            "unseen" if ended else body_mode,
            streams_answer,
            _subset(message),
            request_id_of((find_header(headers, b"x-request-id") or b"").decode("latin-1")),
        )

    def find(self, name: bytes) -> bytes | None:
        """Return the first value of a header; None if it is absent."""
        return find_header(self.headers, name)

    @property
    def path(self) -> str:
        """Path without the query."""
        return (self.find(b":path") or b"").decode("latin-1").partition("?")[0]

    @property
    def announced(self) -> int:
        """Size of the body in bytes according to the headers; 0 = unknown."""
        declared = self.find(b"content-length")
        return int(declared[:18]) if declared is not None and declared.isdigit() else 0


def headers_of(headers: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and value of each header of a HeaderMap. Older proxies send the values as text."""
    for header in headers.headers:
        yield header.key.lower().encode("latin-1", "replace"), header.raw_value or header.value.encode()


def served_by(message: ProcessingRequest) -> str | None:
    """Return the address of the engine that answered, if the proxy reports it."""
    address = _metadata(message, DESTINATION_NAMESPACE).get(SERVED)
    return address if isinstance(address, str) else None


def _subset(message: ProcessingRequest) -> frozenset[str] | None:
    subset = _metadata(message, SUBSET_NAMESPACE).get(SUBSET)
    if subset is None:
        return None
    # The protocol defines a list; some proxies send one text with commas, taken from a header.
    items = [subset] if isinstance(subset, str) else list(subset)
    parts = (part.strip() for item in items for part in str(item).split(","))
    return frozenset(part for part in parts if part)


def _metadata(message: ProcessingRequest, namespace: str) -> dict[str, Any]:
    metadata = message.metadata_context.filter_metadata
    if namespace not in metadata:
        return {}
    return {key: _plain(value) for key, value in metadata[namespace].fields.items()}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    return value.string_value if kind == "string_value" else ""
