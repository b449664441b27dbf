"""What a stream begins with: the request's headers, who may serve it, and how its body comes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mamba_edge.exchange.request_body import find_header
from mamba_edge.exchange.request_middleware import request_id_of
from mamba_gateway.endpoint_picker.ext_proc import ProcessingMode, ProcessingRequest
from mamba_gateway.endpoint_picker.messages import DESTINATION_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE

BodyMode = Literal["streamed", "buffered", "unseen"]
"""streamed: sent without waiting for the answer to the headers, and to be sent back; buffered: sent whole
once the headers are answered; unseen: not sent in time to choose by it."""
_MODES: dict[int, BodyMode] = {
    ProcessingMode.BodySendMode.FULL_DUPLEX_STREAMED: "streamed",
    ProcessingMode.BodySendMode.BUFFERED: "buffered",
}


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The beginning of one request."""

    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case; pseudo headers have a colon."""
    ended: bool
    """There is no body."""
    body_mode: BodyMode
    streams_answer: bool
    """Each piece of the answer is to be sent back; else it only looks on."""
    allowed_addresses: frozenset[str] | None
    """Addresses of the only ones that may serve it; None = any."""
    request_id: str

    @classmethod
    def of(cls, message: ProcessingRequest) -> "RequestHead":
        """Of the first message, which has request headers."""
        headers = tuple(headers_of(message.request_headers.headers))
        body_mode: BodyMode = "streamed"
        streams_answer = True
        if message.HasField("protocol_config"):  # without it: the mode that the protocol asks for
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
        """The first value of a header."""
        return find_header(self.headers, name)

    @property
    def path(self) -> str:
        """Without the query."""
        return (self.find(b":path") or b"").decode("latin-1").partition("?")[0]

    @property
    def announced(self) -> int:
        """Bytes of the body, as far as its headers say."""
        declared = self.find(b"content-length")
        return int(declared[:18]) if declared is not None and declared.isdigit() else 0


def headers_of(headers: Any) -> Iterator[tuple[bytes, bytes]]:
    """Name and value of each header of a HeaderMap; old proxies send values as text."""
    for header in headers.headers:
        yield header.key.lower().encode("latin-1", "replace"), header.raw_value or header.value.encode()


def served_by(message: ProcessingRequest) -> str | None:
    """The address that answered, where the proxy says so."""
    found = _metadata(message, DESTINATION_NAMESPACE).get(SERVED)
    return found if isinstance(found, str) else None


def _subset(message: ProcessingRequest) -> frozenset[str] | None:
    found = _metadata(message, SUBSET_NAMESPACE).get(SUBSET)
    if found is None:
        return None
    # A list by the protocol; one text with commas where a proxy makes it from a header.
    listed = [found] if isinstance(found, str) else list(found)
    parts = (part.strip() for each in listed for part in str(each).split(","))
    return frozenset(part for part in parts if part)


def _metadata(message: ProcessingRequest, namespace: str) -> dict[str, Any]:
    known = message.metadata_context.filter_metadata
    return (
        {key: _plain(value) for key, value in known[namespace].fields.items()} if namespace in known else {}
    )


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [_plain(each) for each in value.list_value.values]
    return value.string_value if kind == "string_value" else ""
