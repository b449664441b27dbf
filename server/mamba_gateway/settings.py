"""Settings of one gateway: the options of `mambaserve gateway`, which the operator and local mode pass, too.

Every option has an environment variable `MAMBASERVE_<NAME>`; the command line wins over the environment.
"""

import ipaddress
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mamba_api.v1alpha1 import Limits, Rollout, Routing
from mamba_edge.usage.prices import Prices
from mamba_gateway.key_limits import MOST, KeyLimits, KeyLimitTable
from mamba_prefix.redis_url import check_url
from mamba_settings.browser_origins import BrowserOrigins
from mamba_settings.byte_size import Bytes
from mamba_settings.history_settings import HistorySettings
from mamba_settings.http_limits import HttpLimits
from mamba_settings.trace_settings import TraceSettings
from mamba_settings.usage_settings import UsageSettings

_LIMITS, _ROLLOUT, _ROUTING = Limits(), Rollout(), Routing()
"""Sections of a MambaDeployment. Their defaults are the defaults of the corresponding settings, too."""


MAX_REFUSED_AT_ONCE = 512
"""Number of requests beyond the gateway's limits that it can be refusing at the same time."""


def _is_plain_address(url: str) -> bool:
    parts = urlsplit(url)
    try:
        ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return False
    return parts.scheme == "http" and parts.port is not None and not parts.path and parts.username is None


class GatewaySettings(
    HttpLimits, HistorySettings, UsageSettings, BrowserOrigins, TraceSettings, BaseSettings
):
    """One gateway. Times are seconds, sizes are bytes."""

    model_config = SettingsConfigDict(
        env_prefix="MAMBASERVE_",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        enable_decoding=False,  # in the environment, lists are words separated by spaces, not JSON
    )

    backend: tuple[str, ...] = ()
    """Base URLs of engines, for a fixed set; in the environment separated by spaces."""
    deployment: str | None = None
    """MambaDeployment whose engines are watched: the EndpointSlices of the Service `NAME-engine`."""
    models_file: str | None = None
    """JSON file with several models for this one address, read again when it changes: their names, engines,
    limits and fallbacks, and which keys may use which of them; in place of --backend and --deployment."""
    served_model_name: str | None = Field(None, min_length=1, max_length=253)
    """Name of the model that the engines serve. While there is no engine it is listed in `/v1/models` and
    waited for, and other names get 404; default: the engines report it."""
    adapter_name: tuple[str, ...] = Field((), max_length=256)
    """Names of LoRA adapters that the engines serve beside that model, likewise listed and waited for while
    there is no engine; in the environment separated by spaces."""
    adapter_names_file: str | None = None
    """File with such names, one a line, read again when it changes; in place of --adapter-name."""
    namespace: str | None = None
    """Namespace of the deployment; default: the one this process runs in."""
    kubeconfig: str | None = None
    """Path of a kubeconfig; default: in-cluster configuration, then the default kubeconfig."""
    host: str = "127.0.0.1"
    """Address the HTTP server binds."""
    port: int = Field(8000, ge=0, le=65535)
    """Port of the HTTP server; 0 takes a free one."""
    redis_url: str | None = None
    """Address of the Redis to which engines publish their prefixes, and in which gateways share stored
    responses, the counts of keys and the ledger; one with a password comes in the variable or a file;
    default: the engines themselves are polled, and each gateway stores and counts alone."""
    redis_url_file: str | None = None
    """File with that address, such as a mounted Secret."""
    prefix_index_scope: str | None = Field(None, min_length=1, max_length=512)
    """Name that the engines and gateways of one index share; default: --namespace/--deployment."""
    api_key_file: str | None = None
    """File with one accepted API key a line, followed by its name, read again when it changes; default: no
    authentication."""
    requests_per_minute: int | None = Field(None, ge=1, le=MOST)
    """Most requests of one key in a minute; default: no limit."""
    tokens_per_minute: int | None = Field(None, ge=1, le=MOST)
    """Most tokens of one key in a minute, of prompts and answers together; default: no limit."""
    concurrent_requests: int | None = Field(None, ge=1, le=MOST)
    """Most requests of one key at once, those that wait included; default: no limit."""
    key_limit: tuple[str, ...] = ()
    """Limits of one key by its name, in place of those for all: NAME:requests=60,tokens=9000,concurrent=4,
    and its share while others wait, weight=2; in the environment separated by spaces."""
    backend_key_file: str | None = None
    """File whose first key is sent to engines in place of the client's; default: none."""
    endpoint_picker_port: int | None = Field(None, ge=0, le=65535)
    """Port of the endpoint picker: gRPC, for Envoy and other proxies that speak the Gateway API Inference
    Extension; 0 takes a free one; default: there is none."""
    endpoint_picker_tls: bool = True
    """Whether the endpoint picker speaks TLS, as proxies of the Gateway API do."""
    endpoint_picker_certificate: str | None = None
    """PEM file with the endpoint picker's certificate, read again when it changes; default: self-signed."""
    endpoint_picker_key: str | None = None
    """PEM file with the key of that certificate."""
    endpoint_picker_token_file: str | None = None
    """File with tokens, one a line, read again when it changes: a proxy shows one of them as bearer token in
    the metadata of each gRPC call, and the endpoint picker serves no other; default: it serves every
    proxy."""
    inference_pool: str | None = Field(None, min_length=1, max_length=253)
    """Name of the InferencePool that the endpoint picker's metrics carry; default: --deployment."""
    max_in_flight: int = Field(_LIMITS.max_in_flight, ge=1)
    """Most requests relayed at once."""
    max_queue: int = Field(_LIMITS.max_queued, ge=0)
    """Most requests waiting for their turn; beyond it the answer is 429."""
    queue_timeout: float = Field(_LIMITS.queue_timeout.seconds, gt=0)
    """Longest wait of a request for its turn before the answer is 429."""
    hold_timeout: float = Field(_LIMITS.queue_timeout.seconds, ge=0)
    """How long a request waits for an endpoint to become ready before the answer is 503."""
    max_body_bytes: Bytes = Field(ByteSize(_LIMITS.max_body_size.bytes), ge=1)
    """Largest request body taken, such as 32Mi; beyond it the answer is 413."""
    connect_timeout: float = Field(2.0, gt=0)
    """Longest time to open a connection to an engine."""
    idle_timeout: float = Field(900.0, gt=0)
    """Longest silence of an engine within one answer."""
    silence_timeout: float = Field(20.0, gt=0)
    """Silence after which an engine is checked at `/livez`, and given up if it does
    not answer."""
    request_timeout: float = Field(_LIMITS.request_timeout.seconds, gt=0)
    """Longest life of one request from its turn on."""
    comment_interval: float = Field(15.0, ge=0)
    """Time between SSE comments in a stream that waits for its first byte, so that no
    balancer cuts it; from then on an error is an event of the stream. 0 = never."""
    prefix_weight: float = Field(_ROUTING.prefix_weight, ge=0, le=100)
    """Weight of the time to compute the tokens that an engine cannot resume; 0 = the cache of engines is
    ignored."""
    load_weight: float = Field(_ROUTING.load_weight, ge=0, le=100)
    """Weight of the time until an engine begins with a request; 0 = the load of engines is ignored."""
    hand_over_tokens: int = Field(512, ge=1)
    """Fewest tokens that an engine would have to compute of a prompt from which another engine computes them
    for it: a prefill engine, or an engine that has them cached. Counts where engines move states."""
    max_attempts: int = Field(3, ge=1, le=10)
    """Most engines tried for one request, all before its first byte."""
    probe_interval: float = Field(1.0, gt=0)
    """Time between two probes of an engine's `/readyz` and `/metrics`."""
    probe_timeout: float = Field(2.0, gt=0)
    """Longest time that one such probe may take."""
    drain_timeout: float = Field(_ROLLOUT.drain_timeout.seconds, ge=0)
    """Longest time for running requests to finish after SIGTERM before they are cut."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""

    @field_validator("backend", "key_limit", mode="before")
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
            except ValueError as error:  # for instance a port out of range, or an incomplete IPv6 address
                raise ValueError(f"{url!r} is not a URL: {error}") from None
            if not usable or any(character.isspace() for character in url):
                raise ValueError(f"{url!r} is not an http:// or https:// URL")
            if parts.query or parts.fragment:
                raise ValueError(f"{url!r}: a base URL has neither query nor fragment")
        return tuple(dict.fromkeys(url.rstrip("/").removesuffix("/v1") for url in value))

    @field_validator("redis_url")
    @classmethod
    def _check_redis(cls, value: str | None) -> str | None:
        return None if value is None else check_url(value)

    @property
    def index_scope(self) -> str:
        """Name under which the gateways and engines of one deployment share the index in Redis."""
        return self.prefix_index_scope or f"{self.namespace}/{self.deployment}"

    @property
    def connections(self) -> int:
        """Maximum number of connections: the setting, or enough for all requests that may be accepted."""
        if "max_connections" in self.model_fields_set:
            return self.max_connections
        return max(self.max_connections, self.max_in_flight + self.max_queue + MAX_REFUSED_AT_ONCE)

    @model_validator(mode="after")
    def _a_connection_for_each_request(self) -> Self:
        if self.connections < self.max_in_flight:
            raise ValueError(
                f"--max-in-flight {self.max_in_flight} cannot be reached with --max-connections "
                f"{self.max_connections}: each request takes a connection; raise the latter or leave it out"
            )
        return self

    @property
    def key_limits(self) -> KeyLimitTable:
        """Limits of every API key."""
        default = KeyLimits(self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests)
        return KeyLimitTable.parsed(default, self.key_limit)

    @model_validator(mode="after")
    def _limits_of_keys(self) -> Self:
        if self.key_limit and self.api_key_file is None:
            raise ValueError("--key-limit is for keys by name, and there are none without --api-key-file")
        try:
            _ = self.key_limits
        except ValueError as error:
            raise ValueError(f"--key-limit {error}") from None
        return self

    @model_validator(mode="after")
    def _one_ledger(self) -> Self:
        if self.usage_reader and self.api_key_file is None:
            raise ValueError("--usage-reader is for keys by name, and there are none without --api-key-file")
        if self.usage_file and (self.redis_url is not None or self.redis_url_file is not None):
            raise ValueError("with a Redis the use of engines is kept there: leave out --usage-file")
        return self

    @property
    def prices(self) -> Prices:
        """Prices of the use of engines."""
        return Prices(
            self.price_currency,
            self.price_device_hour,
            self.price_prompt_tokens,
            self.price_resumed_tokens,
            self.price_output_tokens,
        ).with_models(self.model_price)

    @model_validator(mode="after")
    def _prices_of_models(self) -> Self:
        try:
            _ = self.prices
        except ValueError as error:
            raise ValueError(f"--model-price {error}") from None
        return self

    @model_validator(mode="after")
    def _one_index(self) -> Self:
        if self.redis_url is not None and self.redis_url_file is not None:
            raise ValueError("give either --redis-url or --redis-url-file, and not both")
        shared = self.redis_url is not None or self.redis_url_file is not None
        placed = self.deployment is not None and self.namespace is not None
        if shared and self.models_file is not None and self.prefix_index_scope is None:
            raise ValueError(
                "with a Redis and --models-file, --prefix-index-scope names this gateway: the responses that "
                "it keeps are stored under that name"
            )
        if shared and not placed and self.prefix_index_scope is None:
            raise ValueError(
                "with a Redis, --prefix-index-scope says which index is read: the engines' own "
                "--prefix-index-scope, or the name of the model they serve"
            )
        return self

    @model_validator(mode="after")
    def _one_picker(self) -> Self:
        options = {
            "--no-endpoint-picker-tls": not self.endpoint_picker_tls,
            "--endpoint-picker-certificate": self.endpoint_picker_certificate is not None,
            "--endpoint-picker-key": self.endpoint_picker_key is not None,
            "--endpoint-picker-token-file": self.endpoint_picker_token_file is not None,
            "--inference-pool": self.inference_pool is not None,
        }
        picker_options = [name for name, is_set in options.items() if is_set]
        if self.endpoint_picker_port is None:
            if picker_options:
                raise ValueError(
                    f"{picker_options[0]} is for the endpoint picker: give --endpoint-picker-port, too"
                )
            return self
        if (self.endpoint_picker_certificate is None) != (self.endpoint_picker_key is None):
            raise ValueError("--endpoint-picker-certificate and --endpoint-picker-key belong together")
        if self.endpoint_picker_certificate is not None and not self.endpoint_picker_tls:
            raise ValueError("--no-endpoint-picker-tls shows no certificate: leave out one of the two")
        for url in self.backend:
            if not _is_plain_address(url):
                raise ValueError(
                    f"--backend {url}: the endpoint picker tells a proxy IP and port: give it as "
                    "http://IP:PORT"
                )
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.models_file is not None:
            self._check_several_models()
        elif (self.adapter_name or self.adapter_names_file) and self.served_model_name is None:
            raise ValueError("--adapter-name is for adapters of --served-model-name: give both")
        elif self.adapter_name and self.adapter_names_file:
            raise ValueError("give either --adapter-name or --adapter-names-file, and not both")
        elif bool(self.backend) == bool(self.deployment):
            raise ValueError(
                "give either --backend URL (repeatable) or --deployment NAME, and not both; or --models-file "
                "for several models"
            )
        return self

    def _check_several_models(self) -> None:
        """Raise ValueError for an option that belongs to one model, which the file of models has."""
        options = {
            "--backend": bool(self.backend),
            "--deployment": self.deployment is not None,
            "--served-model-name": self.served_model_name is not None,
            "--adapter-name": bool(self.adapter_name),
            "--adapter-names-file": self.adapter_names_file is not None,
            "--endpoint-picker-port": self.endpoint_picker_port is not None,
        }
        if wrong := [name for name, is_set in options.items() if is_set]:
            raise ValueError(
                f"{wrong[0]} is for a gateway of one model: leave it out, or leave out --models-file"
            )
