"""Reads the headers of hand-overs from the requests of gateways.

A header that is not of the exact form is ignored with a log line: the request is then served as if no state
could be moved, which is slower and never wrong.
"""

from mamba_api.names import GATEWAY_KEY
from mamba_edge.api_keys import KeyFile
from mamba_edge.exchange.hand_over_headers import EXPORT, HAND_OVER_HEADER, PEER_HEADER, parse_source
from mamba_edge.exchange.request_context import RequestContext
from mamba_server.wire import Fetch
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


def comes_from_gateway(context: RequestContext, keys: KeyFile | None) -> bool:
    """Return whether the request may carry these headers: it needs the gateway's key where there are keys."""
    return keys is None or context.key_name == GATEWAY_KEY or keys.names == {context.key_name}


def hands_over(context: RequestContext) -> bool:
    """Return whether the prompt is to be computed and its state kept for another engine."""
    return context.header_values.get(HAND_OVER_HEADER) == EXPORT


def source_of(context: RequestContext) -> Fetch | None:
    """Return the source from which the state of the prompt is to be fetched; None = there is none."""
    for header in (HAND_OVER_HEADER, PEER_HEADER):
        value = context.header_values.get(header)
        if value is None:
            continue
        source = parse_source(header, value)
        if source is None:
            log.warning("header_ignored", header=header.decode(), value=value[:200].decode("latin-1"))
            continue
        return Fetch(source.address, source.incarnation, source.depth, source.export)
    return None
