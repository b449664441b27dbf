"""What a listening process bears from its clients' connections: the same settings at engine and gateway.

Enforced by `mamba_edge`: the HTTP server, and the budget of bodies.
"""

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from mamba_settings.byte_size import Bytes


class HttpLimits(BaseModel):
    """HTTP limits."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    header_timeout: float = Field(20.0, gt=0)
    """Seconds from connecting, or from a request's first byte, to the end of the request's headers."""
    body_timeout: float = Field(60.0, gt=0)
    """Seconds a client may take to send its body."""
    keep_alive_timeout: float = Field(75.0, gt=0)
    """Seconds a connection may be idle between requests; longer than the 60 of most load balancers."""
    read_nothing_timeout: float = Field(60.0, gt=0)
    """Seconds a client may read nothing of an answer that waits for it; then its connection is cut."""
    max_connections: int = Field(4096, ge=1)
    """Most connections with a request under way; one more gets 503, unless it asks for a probe or metrics. Of
    more connections the one that has been idle longest is closed."""
    drain_quiet: float = Field(0.0, ge=0)
    """After SIGTERM, requests are taken until none has come and none was under way for so many seconds, and
    each answer closes its connection: for balancers that learn elsewhere that this process goes, as those of
    Kubernetes do. 0 = none is taken. For half of the drain timeout at most."""
    max_held_body_bytes: Bytes = Field(ByteSize(256 * 2**20), ge=1)
    """Most bytes of request bodies held at once, such as 256Mi, but at least one body; beyond it: 503."""
