"""Settings of one gateway: what `mambaserve gateway` takes, and what the operator and local mode pass on.

Every option has an environment variable `MAMBASERVE_<NAME>`; the command line wins over the environment.
"""

from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mamba_planner.byte_size import Bytes


class GatewaySettings(BaseSettings):
    """One gateway. Times are seconds, sizes are bytes."""

    model_config = SettingsConfigDict(
        env_prefix="MAMBASERVE_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    backend: Annotated[tuple[str, ...], NoDecode] = ()
    """Base URLs of engines, for a fixed set; in the environment separated by spaces."""
    deployment: str | None = None
    """MambaDeployment whose engines are watched: the EndpointSlices of the Service `NAME-engine`."""
    namespace: str | None = None
    """Namespace of the deployment; none = the one this process runs in."""
    kubeconfig: str | None = None
    """Path of a kubeconfig; none = in-cluster configuration, then the default kubeconfig."""
    host: str = "127.0.0.1"
    """Address the HTTP server binds."""
    port: int = Field(8000, ge=0, le=65535)
    """Port of the HTTP server; 0 takes a free one."""
    redis_url: str | None = None
    """Redis that holds the shared prefix index; none = route by load alone."""
    api_key_file: str | None = None
    """File with one accepted API key a line, read again when it changes; none = no authentication."""
    max_in_flight: int = Field(1024, ge=1)
    """Most requests relayed at once."""
    max_queue: int = Field(1024, ge=0)
    """Most requests waiting for a place; beyond it the answer is 429."""
    queue_timeout: float = Field(30.0, gt=0)
    """Longest wait for a place before the answer is 429."""
    hold_timeout: float = Field(10.0, ge=0)
    """How long a request waits for an endpoint to become ready before the answer is 503."""
    max_body_bytes: Bytes = Field(ByteSize(32 * 1024 * 1024), ge=1)
    """Largest request body taken; beyond it the answer is 413."""
    body_timeout: float = Field(60.0, gt=0)
    """Longest time a client may take to send its body."""
    connect_timeout: float = Field(2.0, gt=0)
    """Longest time to open a connection to an engine."""
    idle_timeout: float = Field(900.0, gt=0)
    """Longest silence of an engine within one answer."""
    request_timeout: float = Field(3600.0, gt=0)
    """Longest life of one request once it has its place."""
    max_attempts: int = Field(3, ge=1, le=10)
    """Most engines tried for one request, all before its first byte."""
    probe_interval: float = Field(1.0, gt=0)
    """Time between two looks at an engine's `/readyz` and `/metrics`."""
    probe_timeout: float = Field(2.0, gt=0)
    """Longest time one such look may take."""
    drain_timeout: float = Field(300.0, ge=0)
    """After SIGTERM, how long running requests may take to finish before they are cut."""
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")
    """Least severe message that is logged."""

    @field_validator("backend", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value

    @field_validator("backend")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            try:
                parts = urlsplit(url)
                usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError as error:  # a port beyond its range, half of an IPv6 address
                raise ValueError(f"{url!r} is not a URL: {error}") from None
            if not usable or any(character.isspace() for character in url):
                raise ValueError(f"{url!r} is not an http:// or https:// URL")
            if parts.query or parts.fragment:
                raise ValueError(f"{url!r}: a base URL has neither query nor fragment")
        return tuple(dict.fromkeys(url.rstrip("/").removesuffix("/v1") for url in value))

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.backend) == bool(self.deployment):
            raise ValueError("give either --backend URL (repeatable) or --deployment NAME, and not both")
        return self
