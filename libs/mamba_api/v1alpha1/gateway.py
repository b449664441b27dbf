"""Everything in front of the engines: `spec.gateway`, the `prefixIndex` it follows, and `telemetry`."""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, Rule, SecretRef, each_once, map_by
from mamba_api.v1alpha1.gateway_usage import READERS_NEED_AUTH, KeyName, Usage

ORIGIN = r"^(\*|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)$"
"""Pattern of an origin as browsers write it, or * for all."""


class Routing(ApiModel):
    """How the gateway chooses an engine: by the expected seconds until the first token.

    Each weight scales one part of that time.
    """

    prefix_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Weight of the time to compute the prompt tokens that the engine cannot resume from a checkpoint. 0
    ignores cached prefixes."""
    load_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Weight of the time until the engine can start: earlier prompts, memory, running answers. 0 ignores the
    load of engines."""


class Auth(ApiModel):
    """Authentication of clients.

    Engines then accept only a key of this deployment, which its gateways present, so that no client can
    bypass the gateways.
    """

    secret_ref: SecretRef
    """Secret whose key api-keys holds one accepted API key per line, optionally followed by a space and the
    name of the key."""


class KeyLimits(ApiModel):
    """Limits of one API key, counted by all gateways together if they share a Redis."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Requests per minute; further requests get 429 with Retry-After. If absent, there is no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens per minute, of prompts and answers together. If absent, there is no limit."""
    concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Requests at once, including those that wait. If absent, there is no limit."""


class NamedKeyLimits(KeyLimits):
    """Limits of the key with one name. Absent fields are taken from the limits of every key."""

    name: KeyName
    """Name of the key: the second word of its line in the Secret."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Weight of the key: while requests of several keys wait, each key gets a share of the engines in
    proportion to its weight."""


class Limits(ApiModel):
    """Requests that the gateway accepts before it sheds load."""

    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Maximum number of requests that one gateway relays at once, whatever the engines can run. Further
    requests are queued."""
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    """Maximum number of requests that one gateway holds while no engine can take them. Beyond it, the key
    with the most queued requests gets 429 with Retry-After."""
    queue_timeout: Duration = Duration("60s")
    """How long a request may wait for an engine to become ready, including a wake from zero, before it gets
    503 with Retry-After; also how long it may be queued before it gets 429. A request that is first queued
    and then waits for an engine may take twice as long."""
    request_timeout: Duration = Duration("1h")
    """Maximum duration of one request."""
    max_body_size: Quantity = Quantity("32Mi")
    """Maximum size of a request body; a larger one gets 413. A change replaces engine and gateway pods."""
    per_key: KeyLimits | None = None
    """Limits of every key; without gateway.auth all clients together count as one key. If absent, there is no
    limit."""
    keys: Annotated[
        list[NamedKeyLimits],
        Field(
            max_length=256,
            json_schema_extra=map_by("name"),
        ),
        each_once("name"),
    ] = []
    """Limits of single keys; a field set here overrides the field of perKey."""

    rules = (
        Rule(
            cel="self.queueTimeout.matches('[1-9]')",
            message="limits.queueTimeout is 0, but a request needs a moment to get a place: set it to 1ms",
            holds=lambda self: self.queue_timeout.seconds > 0,
        ),
        Rule(
            cel="self.requestTimeout.matches('[1-9]')",
            message="limits.requestTimeout is 0, so every request would end at once: set it above 0",
            holds=lambda self: self.request_timeout.seconds > 0,
        ),
        Rule(
            cel="type(self.maxBodySize) == string ? self.maxBodySize.matches('[1-9]') : self.maxBodySize > 0",
            message="limits.maxBodySize is 0, so every request would get 413: set it above 0",
            holds=lambda self: self.max_body_size.bytes > 0,
        ),
    )


class InferencePool(ApiModel):
    """The engines as an InferencePool of the Gateway API Inference Extension.

    A proxy then sends requests to the engines itself and asks the gateway pods which engine to take.
    """

    proxy_namespace: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    ]
    """Namespace that the proxy's pods run in. Only these pods and the gateway may send requests to
    engines."""


class Gateway(ApiModel):
    """The gateway pods."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image of the gateway. Defaults to the operator's `--gateway-image`."""
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of gateway pods. A change from several to another number replaces no pod."""
    routing: Routing = Routing()
    """How the gateway chooses an engine."""
    auth: Auth | None = None
    """Authentication of clients. If absent, everybody who reaches the Service may call it. Adding or removing
    it replaces engine and gateway pods."""
    cors_origins: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=ORIGIN)]], Field(max_length=64)
    ] = []
    """Origins whose pages may call the endpoint from a browser, such as https://chat.example.org, or * for
    all. Defaults to none."""
    limits: Limits = Limits()
    """Admission limits of each gateway pod."""
    usage: Usage = Usage()
    """The ledger of the use of engines, and its prices. A MambaGateway in front of several deployments has
    its own."""
    inference_pool: InferencePool | None = None
    """An InferencePool with the name of the deployment and the gateway pods as its endpoint picker. If
    absent, none is created. The cluster needs the kind inference.networking.k8s.io/v1."""
    pod_template: FreeForm | None = None
    """Pod template (metadata, spec) that is merged strategically into the gateway pods."""

    rules = (
        Rule(
            cel="has(self.auth) || !has(self.limits.keys) || size(self.limits.keys) == 0",
            message="limits.keys applies to named keys, and without auth there are no keys: name a Secret in "
            "auth, or use limits.perKey",
            holds=lambda self: self.auth is not None or not self.limits.keys,
        ),
        READERS_NEED_AUTH,
    )


class Redis(ApiModel):
    """A Redis that several gateways, and the engines that publish to it, share."""

    url: (
        Annotated[
            str,
            Field(
                min_length=1, max_length=1024, pattern=r"^(unix|rediss?(\+sentinel|\+cluster)?)://[^@\s]+$"
            ),
        ]
        | None
    ) = None
    """Address without a password, such as redis://redis.cache.svc:6379/0, rediss://..., redis+cluster://...
    or redis+sentinel://a,b,c/master/0."""
    secret_ref: SecretRef | None = None
    """Secret whose key url holds the whole address with its password; replaces url."""

    rules = (
        Rule(
            cel="has(self.url) != has(self.secretRef)",
            message="redis needs either url or secretRef: set exactly one",
            holds=lambda self: (self.url is None) != (self.secret_ref is None),
        ),
    )


class PrefixIndex(ApiModel):
    """How gateways learn which engine can resume which prefix."""

    redis: Redis | None = None
    """Redis to which engines publish their cached prefixes and which gateways follow. If absent, gateways ask
    each engine."""


class Telemetry(ApiModel):
    """Traces of gateways and engines. Metrics are always served at /metrics."""

    otlp_endpoint: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^https?://.+$")] | None = (
        None
    )
    """OTLP endpoint that gateways and engines send spans to, such as http://collector.observability.svc:4318.
    If absent, no traces are recorded."""
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    """Protocol of the endpoint. The usual ports of a collector are 4318 for http/protobuf and 4317 for
    grpc."""
    sampling: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of requests whose spans are kept, chosen by trace id. A traceparent header of the client decides
    for its own request."""
    slow_after: Duration = Duration("10s")
    """Time to first byte from which the spans of a request are kept in addition to that share, as are those
    of failed requests. 0s keeps no slow requests."""
