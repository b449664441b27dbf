"""Headers by which a gateway moves the state of a prompt between two engines. Pure.

The endpoints read them. A header that is not of the exact form is ignored with a log line: the request is
then served as if no state could be moved, which is slower and never wrong.
"""

import re

from mamba_api.names import GATEWAY_KEY
from mamba_edge.api_keys import KeyFile
from mamba_edge.exchange.request_context import RequestContext
from mamba_server.wire import Fetch
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

HAND_OVER_HEADER = b"x-mambaserve-hand-over"
"""`export`: compute the prompt and keep its state; `address=…;incarnation=…;export=…;depth=…`: fetch it;
`release=…`: end an export."""
PEER_HEADER = b"x-mambaserve-peer"
"""`address=…;incarnation=…;depth=…`: an engine that has more of the prompt cached."""
EXPORT = b"export"
_SOURCE = re.compile(
    rb"address=(?P<address>\[[0-9a-fA-F:.]{2,45}\]:[0-9]{1,5}|[0-9.]{7,15}:[0-9]{1,5})"
    rb";incarnation=(?P<incarnation>[A-Za-z0-9._-]{1,64})"
    rb"(?:;export=(?P<export>[A-Za-z0-9._-]{1,64}))?"
    rb";depth=(?P<depth>[1-9][0-9]{0,8})"
)
_RELEASE = re.compile(rb"release=([A-Za-z0-9._-]{1,64})")


def comes_from_gateway(context: RequestContext, keys: KeyFile | None) -> bool:
    """Return whether the request may carry these headers: it needs the gateway's key where there are keys."""
    return keys is None or context.key_name == GATEWAY_KEY or keys.names == {context.key_name}


def hands_over(context: RequestContext) -> bool:
    """Return whether the prompt is to be computed and its state kept for another engine."""
    return context.header_values.get(HAND_OVER_HEADER) == EXPORT


def source_of(context: RequestContext) -> Fetch | None:
    """Return the source from which the state of the prompt is to be fetched; None = there is none."""
    for header, needs_export in ((HAND_OVER_HEADER, True), (PEER_HEADER, False)):
        value = context.header_values.get(header)
        if value is None:
            continue
        match = _SOURCE.fullmatch(value)
        if match is None or (match["export"] is not None) != needs_export or not _is_port(match["address"]):
            log.warning("header_ignored", header=header.decode(), value=value[:200].decode("latin-1"))
            continue
        return Fetch(
            match["address"].decode(),
            match["incarnation"].decode(),
            int(match["depth"]),
            (match["export"] or b"").decode(),
        )
    return None


def released_export(value: bytes) -> str | None:
    """Return the export that a header of the form `release=…` names; None = it has another form."""
    match = _RELEASE.fullmatch(value)
    return None if match is None else match[1].decode()


def _is_port(address: bytes) -> bool:
    return 0 < int(address.rpartition(b":")[2]) <= 65535
