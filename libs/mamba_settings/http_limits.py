"""Limits for the connections of clients: the same settings at engine and gateway.

`mamba_edge` enforces them: the HTTP server, and the budget of bodies.
"""

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from mamba_settings.byte_size import Bytes


class HttpLimits(BaseModel):
    """HTTP limits."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    header_timeout: float = Field(20.0, gt=0)
    """Seconds from connecting, or from a request's first byte, to the end of the request's headers."""
    body_timeout: float = Field(60.0, gt=0)
    """Seconds that a client may take to send its body."""
    keep_alive_timeout: float = Field(75.0, gt=0)
    """Seconds that a connection may be idle between requests; longer than the 60 of most load balancers."""
    read_nothing_timeout: float = Field(60.0, gt=0)
    """Seconds that a client may read nothing of an answer that waits for it; then its connection is
    closed."""
    max_connections: int = Field(4096, ge=1)
    """Maximum number of connections with a request in progress; a further one gets 503, unless it requests a
    probe or metrics. Beyond this number of connections, the one that has been idle longest is closed."""
    drain_quiet: float = Field(0.0, ge=0)
    """Quiet period in seconds: after SIGTERM, requests are accepted until none has arrived and none was in
    progress for this long, and each answer closes its connection. For load balancers that learn elsewhere
    that this process ends, such as those of Kubernetes. 0 = accept none. Limited to half of the drain
    timeout."""
    max_held_body_bytes: Bytes = Field(ByteSize(256 * 2**20), ge=1)
    """Maximum bytes of request bodies held at once, such as 256Mi, but at least one body; beyond it: 503."""
