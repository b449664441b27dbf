"""The messages of Envoy's external processing as protobuf classes, built at import from their descriptors."""

from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.message_factory import GetMessageClass

from mamba_gateway.endpoint_picker.ext_proc_descriptors import EXT_PROC, MESSAGES, STRUCT, make_pool

SERVICE = f"{EXT_PROC}.ExternalProcessor"
"""Name of the gRPC service, which has one method."""
METHOD = "Process"
"""Method with which a proxy opens a stream of ProcessingRequest and gets a stream of ProcessingResponse."""

if TYPE_CHECKING:  # These protobuf classes have no static types; annotations use the names below.
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
    # Struct must come from the same pool: protobuf accepts no class of another pool for a field.
    for _name in (*MESSAGES, STRUCT):
        globals()[_name.rpartition(".")[2]] = GetMessageClass(_POOL.FindMessageTypeByName(_name))
