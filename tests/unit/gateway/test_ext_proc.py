"""The picker's messages on the wire, against bytes that were made with Envoy's own, whole messages."""

from typing import Any

import pytest
from google.protobuf import descriptor_pool

from mamba_edge.errors import BodyTooLarge
from mamba_gateway.endpoint_picker import messages
from mamba_gateway.endpoint_picker.ext_proc import ProcessingMode, ProcessingRequest
from mamba_gateway.endpoint_picker.ext_proc_descriptors import MESSAGES
from mamba_gateway.endpoint_picker.request_head import RequestHead, headers_of

HEAD = (
    b"\x12!\n\x1d\n\x0c\n\x05:path\x1a\x03/v1\n\r\n\x05x-old\x12\x04text\x18\x01"
    b"BU\nS\n\x14envoy.lb.subset_hint\x12;\n9\n%x-gateway-destination-endpoint-subset\x12\x102\x0e"
    b"\n\x05\x1a\x03a:1\n\x05\x1a\x03b:2"
    b"P\x01"
    b"Z\x04\x08\x04\x10\x02"
)
"""A ProcessingRequest: headers that end the stream, a subset hint, `observability_mode`, which is no field of
ours, and the bodies' modes: streamed both ways, then buffered."""
DESTINATION = b"B=\n;\n\x08envoy.lb\x12/*-\n+\n\x1ex-gateway-destination-endpoint\x12\t\x1a\x071:2,3:4"
CHOICE = b"\n\x13\x12\x0f\n\n\n\x06\n\x01a\x1a\x01b\x18\x02\x12\x01c(\x01"
REFUSAL = (
    b":f\n\x03\x08\x9d\x03\x12=\n$\n \n\x0ccontent-type\x1a\x10application/json\x18\x02"
    b"\n\x15\n\x11\n\x0cx-request-id\x1a\x01r\x18\x02\x1a\x02{}*\x1cmambaserve_request_too_large"
)


def test_the_first_message_of_a_proxy_is_understood() -> None:
    message = ProcessingRequest.FromString(HEAD)
    head = RequestHead.of(message)
    assert head.headers == ((b":path", b"/v1"), (b"x-old", b"text"))
    assert head.ended
    assert head.allowed_addresses == {"a:1", "b:2"}
    assert not head.streams_answer
    assert message.protocol_config.response_body_mode == ProcessingMode.BUFFERED
    message.request_headers.end_of_stream = False
    assert RequestHead.of(message).body_mode == "streamed"


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (b"\x1a\x12\n\x10\n\x0e\n\x07:status\x1a\x03200", "response_headers"),
        (b'"\x05\n\x01x\x10\x01', "request_body"),
        (b"*\x05\n\x01x\x10\x01", "response_body"),
        (b"2\n\n\x08\n\x06\n\x01t\x1a\x011", "request_trailers"),
        (b":\x00", "response_trailers"),
    ],
)
def test_each_later_message_is_known_for_what_it_is(wire: bytes, kind: str) -> None:
    message = ProcessingRequest.FromString(wire)
    assert message.WhichOneof("request") == kind
    if kind == "response_headers":
        assert list(headers_of(message.response_headers.headers)) == [(b":status", b"200")]
    if kind.endswith("_body"):
        part = getattr(message, kind)
        assert (part.body, part.end_of_stream) == (b"x", True)


def test_fields_that_we_do_not_know_are_kept() -> None:
    again = ProcessingRequest.FromString(ProcessingRequest.FromString(HEAD).SerializeToString())
    assert b"P\x01" in again.SerializeToString()
    assert len(again.SerializeToString()) == len(HEAD)


def mutation() -> Any:
    return messages.header_mutation([("a", b"b")], ["c"])


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (messages.picked_by_headers(mutation(), ["1:2", "3:4"]), b"\n\x15" + CHOICE + DESTINATION),
        (messages.picked_by_body(mutation(), ["1:2", "3:4"]), b"\x1a\x15" + CHOICE + DESTINATION),
        (next(messages.streamed_request(b"x", ends=True)), b"\x1a\x0b\n\t\x1a\x07\x1a\x05\n\x01x\x10\x01"),
        (next(messages.streamed_answer(b"y", ends=False)), b'"\t\n\x07\x1a\x05\x1a\x03\n\x01y'),
        (messages.unchanged("request_trailers"), b"*\x00"),
        (messages.unchanged("response_trailers"), b"2\x00"),
        (messages.answer_headers([("a", b"b")]), b"\x12\x10\n\x0e\x12\x0c\n\n\n\x06\n\x01a\x1a\x01b\x18\x02"),
    ],
)  # fmt: skip
def test_what_the_picker_says_is_what_envoy_reads(message: Any, wire: bytes) -> None:
    assert message.SerializeToString() == wire


def test_a_refusal_is_what_envoy_reads() -> None:
    message = messages.refusal(BodyTooLarge("too large"), "r")
    message.immediate_response.body = b"{}"
    assert message.SerializeToString() == REFUSAL


def test_nobody_elses_messages_of_envoy_are_in_the_way() -> None:
    """Load both definitions in one process: complete ones in the common pool do not conflict with ours."""
    common = descriptor_pool.Default()
    for name in MESSAGES:
        with pytest.raises(KeyError):
            common.FindMessageTypeByName(name)
