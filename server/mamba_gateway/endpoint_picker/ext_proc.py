"""The messages of Envoy's external processing as protobuf classes, built at import from their descriptors."""

from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.message_factory import GetMessageClass

from mamba_gateway.endpoint_picker.ext_proc_descriptors import EXT_PROC, MESSAGES, STRUCT, make_pool

SERVICE = f"{EXT_PROC}.ExternalProcessor"
"""The gRPC service; a proxy calls its only method."""
METHOD = "Process"
"""A stream of ProcessingRequest for a stream of ProcessingResponse."""

if TYPE_CHECKING:  # protobuf has no types here; these names may stand where a type is wanted
    BodyMutation: TypeAlias = Any
    BodyResponse: TypeAlias = Any
    CommonResponse: TypeAlias = Any
    HeaderMap: TypeAlias = Any
    HeaderMutation: TypeAlias = Any
    HeadersResponse: TypeAlias = Any
    HeaderValue: TypeAlias = Any
    HeaderValueOption: TypeAlias = Any
    HttpBody: TypeAlias = Any
    HttpHeaders: TypeAlias = Any
    HttpStatus: TypeAlias = Any
    HttpTrailers: TypeAlias = Any
    ImmediateResponse: TypeAlias = Any
    Metadata: TypeAlias = Any
    ProcessingMode: TypeAlias = Any
    ProcessingRequest: TypeAlias = Any
    ProcessingResponse: TypeAlias = Any
    ProtocolConfiguration: TypeAlias = Any
    StreamedBodyResponse: TypeAlias = Any
    Struct: TypeAlias = Any
    TrailersResponse: TypeAlias = Any
else:
    _POOL = make_pool()
    # Struct, too, must be of this pool: protobuf accepts no other one for a field.
    for _name in (*MESSAGES, STRUCT):
        globals()[_name.rpartition(".")[2]] = GetMessageClass(_POOL.FindMessageTypeByName(_name))
