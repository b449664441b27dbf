"""Limits of the kept responses of the Responses API: the same settings at engine and gateway.

`mamba_edge.history` enforces them.
"""

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from mamba_settings.byte_size import Bytes


class HistorySettings(BaseModel):
    """Kept responses."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    response_ttl: float = Field(86400.0, ge=0, le=30 * 86400)
    """Seconds for which a response of `/v1/responses`, or a conversation, is kept after its last use: by a
    gateway with a Redis there, by any other server in its memory; 0 = none is kept."""
    response_budget: Bytes = Field(ByteSize(16 * 2**20), ge=1024)
    """Bytes of responses and conversations that are kept for one API key; beyond it, those that were used the
    longest time ago are deleted. A server without a Redis keeps four times as many for all keys."""
