"""Names, numbers and types of the messages of Envoy's external processing that the picker uses.

They are a subset of the .proto files of envoyproxy/data-plane-api at commit 84e84367f256 (2026-01-29). Fields
that the picker neither reads nor writes are left out; protobuf keeps them as unknown fields. The messages
have a descriptor pool of their own, so that code in the same process may also load Envoy's complete
definitions.
"""

from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

CORE = "envoy.config.core.v3"
TYPE = "envoy.type.v3"
FILTER = "envoy.extensions.filters.http.ext_proc.v3"
EXT_PROC = "envoy.service.ext_proc.v3"
STRUCT = "google.protobuf.Struct"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a protobuf message."""

    number: int
    kind: str
    """Name of a scalar type of protobuf, or the full name of a message or an enum."""
    shape: Literal["one", "list", "map"] = "one"
    """Whether the field holds one value, a list, or a map whose keys are strings."""
    oneof: str = ""
    """Name of a group of fields of which at most one is set; empty = the field is in no group."""


ENUMS: dict[str, dict[str, int]] = {
    f"{CORE}.HeaderValueOption.HeaderAppendAction": {
        "APPEND_IF_EXISTS_OR_ADD": 0,
        "ADD_IF_ABSENT": 1,
        "OVERWRITE_IF_EXISTS_OR_ADD": 2,
        "OVERWRITE_IF_EXISTS": 3,
    },
    # Enums are open: a status that is not listed is represented by its number.
    f"{TYPE}.StatusCode": {"Empty": 0},
    f"{FILTER}.ProcessingMode.BodySendMode": {
        "NONE": 0,
        "STREAMED": 1,
        "BUFFERED": 2,
        "BUFFERED_PARTIAL": 3,
        "FULL_DUPLEX_STREAMED": 4,
        "GRPC": 5,
    },
}
"""Values by the full name of each enum. The name of an enum inside a message begins with the message's
name."""

MESSAGES: dict[str, dict[str, Field]] = {
    f"{CORE}.HeaderValue": {
        "key": Field(1, "string"),
        "value": Field(2, "string"),
        "raw_value": Field(3, "bytes"),
    },
    f"{CORE}.HeaderValueOption": {
        "header": Field(1, f"{CORE}.HeaderValue"),
        "append_action": Field(3, f"{CORE}.HeaderValueOption.HeaderAppendAction"),
    },
    f"{CORE}.HeaderMap": {"headers": Field(1, f"{CORE}.HeaderValue", "list")},
    f"{CORE}.Metadata": {"filter_metadata": Field(1, STRUCT, "map")},
    f"{TYPE}.HttpStatus": {"code": Field(1, f"{TYPE}.StatusCode")},
    f"{FILTER}.ProcessingMode": {},
    f"{EXT_PROC}.ProtocolConfiguration": {
        "request_body_mode": Field(1, f"{FILTER}.ProcessingMode.BodySendMode"),
        "response_body_mode": Field(2, f"{FILTER}.ProcessingMode.BodySendMode"),
    },
    f"{EXT_PROC}.HttpHeaders": {"headers": Field(1, f"{CORE}.HeaderMap"), "end_of_stream": Field(3, "bool")},
    f"{EXT_PROC}.HttpBody": {"body": Field(1, "bytes"), "end_of_stream": Field(2, "bool")},
    f"{EXT_PROC}.HttpTrailers": {},
    f"{EXT_PROC}.ProcessingRequest": {
        "request_headers": Field(2, f"{EXT_PROC}.HttpHeaders", oneof="request"),
        "response_headers": Field(3, f"{EXT_PROC}.HttpHeaders", oneof="request"),
        "request_body": Field(4, f"{EXT_PROC}.HttpBody", oneof="request"),
        "response_body": Field(5, f"{EXT_PROC}.HttpBody", oneof="request"),
        "request_trailers": Field(6, f"{EXT_PROC}.HttpTrailers", oneof="request"),
        "response_trailers": Field(7, f"{EXT_PROC}.HttpTrailers", oneof="request"),
        "metadata_context": Field(8, f"{CORE}.Metadata"),
        "protocol_config": Field(11, f"{EXT_PROC}.ProtocolConfiguration"),
    },
    f"{EXT_PROC}.HeaderMutation": {
        "set_headers": Field(1, f"{CORE}.HeaderValueOption", "list"),
        "remove_headers": Field(2, "string", "list"),
    },
    f"{EXT_PROC}.StreamedBodyResponse": {"body": Field(1, "bytes"), "end_of_stream": Field(2, "bool")},
    f"{EXT_PROC}.BodyMutation": {
        "streamed_response": Field(3, f"{EXT_PROC}.StreamedBodyResponse", oneof="mutation")
    },
    f"{EXT_PROC}.CommonResponse": {
        "header_mutation": Field(2, f"{EXT_PROC}.HeaderMutation"),
        "body_mutation": Field(3, f"{EXT_PROC}.BodyMutation"),
        "clear_route_cache": Field(5, "bool"),
    },
    f"{EXT_PROC}.HeadersResponse": {"response": Field(1, f"{EXT_PROC}.CommonResponse")},
    f"{EXT_PROC}.BodyResponse": {"response": Field(1, f"{EXT_PROC}.CommonResponse")},
    f"{EXT_PROC}.TrailersResponse": {},
    f"{EXT_PROC}.ImmediateResponse": {
        "status": Field(1, f"{TYPE}.HttpStatus"),
        "headers": Field(2, f"{EXT_PROC}.HeaderMutation"),
        "body": Field(3, "bytes"),
        "details": Field(5, "string"),
    },
    f"{EXT_PROC}.ProcessingResponse": {
        "request_headers": Field(1, f"{EXT_PROC}.HeadersResponse", oneof="response"),
        "response_headers": Field(2, f"{EXT_PROC}.HeadersResponse", oneof="response"),
        "request_body": Field(3, f"{EXT_PROC}.BodyResponse", oneof="response"),
        "response_body": Field(4, f"{EXT_PROC}.BodyResponse", oneof="response"),
        "request_trailers": Field(5, f"{EXT_PROC}.TrailersResponse", oneof="response"),
        "response_trailers": Field(6, f"{EXT_PROC}.TrailersResponse", oneof="response"),
        "immediate_response": Field(7, f"{EXT_PROC}.ImmediateResponse", oneof="response"),
        "dynamic_metadata": Field(8, STRUCT),
    },
}
"""Fields of each message, by full name of the message and by name of the field."""


def make_pool() -> Any:
    """Return a descriptor pool with the messages and enums above and `google.protobuf.Struct`."""
    pool = DescriptorPool()
    files = [_file_of_struct()]
    for package in (CORE, TYPE, FILTER, EXT_PROC):  # each file after those that it imports
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        file.dependency.extend(earlier.name for earlier in files)
        _declare(file)
        files.append(file)
    for file in files:
        pool.Add(file)
    return pool


def _file_of_struct() -> Any:
    file = FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def _declare(file: Any) -> None:
    """Declare every message and enum of the file's package."""
    messages = {}
    for full, fields in MESSAGES.items():
        package, _, name = full.rpartition(".")
        if package == file.package:
            messages[full] = file.message_type.add(name=name)
            for field_name, field in fields.items():
                _add_field(messages[full], full, field_name, field)
    for full, values in ENUMS.items():
        outer, _, name = full.rpartition(".")
        if outer == file.package or outer in messages:
            enum = (file if outer == file.package else messages[outer]).enum_type.add(name=name)
            for value, number in values.items():
                enum.value.add(name=value, number=number)


def _add_field(message: Any, full: str, name: str, field: Field) -> None:
    added = message.field.add(name=name, number=field.number)
    added.label = FieldDescriptorProto.LABEL_OPTIONAL
    if field.shape != "one":
        added.label = FieldDescriptorProto.LABEL_REPEATED
    if field.shape == "map":  # protobuf encodes a map as a list of messages with a key and a value
        entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        _add_field(entry, f"{full}.{entry_name}", "key", Field(1, "string"))
        _add_field(entry, f"{full}.{entry_name}", "value", Field(2, field.kind))
        _set_kind(added, f"{full}.{entry_name}")
        return
    _set_kind(added, field.kind)
    if field.oneof:
        names = [oneof.name for oneof in message.oneof_decl]
        if field.oneof not in names:
            message.oneof_decl.add(name=field.oneof)
            names.append(field.oneof)
        added.oneof_index = names.index(field.oneof)


def _set_kind(field: Any, kind: str) -> None:
    if "." not in kind:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        return
    field.type = FieldDescriptorProto.TYPE_ENUM if kind in ENUMS else FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f".{kind}"
