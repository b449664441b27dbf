"""Settings of one engine: what `mambaserve serve` takes, and what the operator and local mode pass on.

One frozen model for both processes; the API process hands it to the engine process as JSON. Every option has
an environment variable `MAMBASERVE_<NAME>`; the command line wins over the environment.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

Strategy = Literal["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]
_SIZE = re.compile(r"[0-9]*\.?[0-9]+\s*[A-Za-z]*")
"""All of a size: ByteSize reads the 1 of 1,5Gi and passes over the rest."""


def _binary(size: Any) -> Any:
    """2Gi, as Kubernetes writes it, is what ByteSize calls 2GiB; what ByteSize would cut off is refused."""
    if not isinstance(size, str):
        return size
    text = size.strip()
    if not _SIZE.fullmatch(text):
        raise PydanticCustomError(
            "byte_size", "'{size}' is no number of bytes: write it like 1536Mi, 1.5Gi or 2G", {"size": size}
        )
    return f"{text}B" if text.endswith("i") else text


Bytes = Annotated[ByteSize, BeforeValidator(_binary)]
"""A number of bytes, or a text such as 512Mi, 2Gi, 2GiB, 2G."""


class EngineSettings(BaseSettings):
    """One engine. Sizes are bytes, lengths are tokens."""

    model_config = SettingsConfigDict(
        env_prefix="MAMBASERVE_", frozen=True, extra="forbid", use_attribute_docstrings=True,
        protected_namespaces=(),
    )  # fmt: skip

    model: str
    """Model directory or URI: file://, hf://owner/name, pvc://claim/path, builtin://name."""
    host: str = "127.0.0.1"
    """Address the HTTP server binds."""
    port: int = Field(8000, ge=0, le=65535)
    """Port of the HTTP server; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """Address of the admin server."""
    admin_port: int | None = Field(None, ge=0, le=65535)
    """Port of the admin server; none = port + 1, 0 = a free one."""
    served_model_name: str | None = None
    """Name in the API; none = the last part of the model's URI."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto = the checkpoint's."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; auto = cuda if there is one."""
    strategy: Literal["Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"] = "Auto"
    """State cache strategy; Auto lets the planner choose."""
    state_dtype: Literal["auto", "float32", "float16"] = "auto"
    """Type of the stored SSM state."""
    track_interval: int = Field(256, ge=1)
    """Tokens between checkpoints while decoding; a multiple of the page size."""
    page_size: int = Field(16, ge=1, le=1024)
    """Tokens per attention KV page."""
    max_model_len: int | None = Field(None, ge=1)
    """Longest prompt plus output; none = the model's own limit."""
    max_running_requests: int | None = Field(None, ge=1)
    """Most sequences running at once; none = what the plan allows."""
    chunked_prefill_tokens: int = Field(2048, ge=1)
    """Token budget of one step."""
    arena_bytes: Bytes | None = None
    """Size of the state and KV arena; none = what the planner computes from the memory."""
    utilization: float = Field(0.9, gt=0, le=1)
    """Share of the device memory the engine may take."""
    device_memory: Bytes | None = None
    """Device memory to plan for; none = what the device reports."""
    eviction: Literal["RecomputeCost", "LRU"] = "RecomputeCost"
    """Which checkpoint goes first when memory is short."""
    max_checkpoints_per_path: int = Field(4, ge=1)
    """Most checkpoints kept along one path of the radix tree."""
    prefix_caching: bool = True
    """Reuse of checkpoints between requests."""
    overlap: bool = True
    """Plan step n+1 while the device runs step n."""
    batch_invariant: bool = False
    """Make a token's logits independent of the batch it runs in (slower)."""
    api_key_file: str | None = None
    """File with one accepted API key a line; none = no authentication."""
    admin_token_file: str | None = None
    """File with the token admin calls must carry; needed when the admin address is not loopback."""
    max_waiting_requests: int = Field(512, ge=1)
    """Most prompts that may wait for their first token; more get 429."""
    max_body_bytes: Bytes = Field(ByteSize(32 * 2**20), ge=1024)
    """Largest request body; larger ones get 413."""
    drain_timeout: float = Field(120.0, ge=0)
    """Seconds that running requests get to finish after SIGTERM."""
    engine_silence: float = Field(120.0, gt=0)
    """Seconds without a sign of life after which a ready engine process counts as hung and is replaced."""
    seed: int = 0
    """Seed of requests that bring none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""
