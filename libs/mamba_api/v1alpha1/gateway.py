"""In front of the engines: `spec.gateway`, the `prefixIndex` it follows, and `telemetry`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, Rule, SecretRef

ORIGIN = r"^(\*|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)$"
"""An origin as browsers write it, or * for all."""


class Routing(ApiModel):
    """How an engine is chosen: by the expected seconds until the first token. Each weight scales a part of
    them."""

    prefix_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Weight of the time to compute what the engine cannot resume from a checkpoint; 0 = whatever it has."""
    load_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Weight of the time until the engine gets to it: prompts before it, memory, running answers; 0 = however
    busy it is."""


class Auth(ApiModel):
    """Authentication of clients. Engines then ask for a key of the deployment's own, which its gateways show:
    nobody passes them by."""

    secret_ref: SecretRef
    """Secret whose key api-keys holds one accepted API key a line, behind it, after a blank, its name."""


class KeyLimits(ApiModel):
    """What one key may use, counted by all gateways together where they have a Redis."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Requests in a minute; more get 429 with Retry-After; absent = no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens in a minute, of prompts and answers together; absent = no limit."""
    concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Requests at once, those that wait included; absent = no limit."""


class NamedKeyLimits(KeyLimits):
    """What the key of one name may use; what is absent here is as for every key."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """The key's name: the second word of its line in the Secret."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Its share of the engines while requests of other keys wait too, in proportion to theirs."""


def _each_once(keys: list[NamedKeyLimits]) -> list[NamedKeyLimits]:
    """What `x-kubernetes-list-type: map` says to the API server."""
    seen = [key.name for key in keys]
    twice = next((name for name in seen if seen.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice: remove one")
    return keys


class Limits(ApiModel):
    """What the gateway takes in before it sheds load."""

    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Requests one gateway relays at once, however many the engines can run; more are queued."""
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    """Requests one gateway holds while no engine can take them; beyond it the key with the most of them gets
    429 with Retry-After."""
    queue_timeout: Duration = Duration("60s")
    """How long a request may be held for an engine to be ready, a wake from zero included, before it gets 503
    with Retry-After, and how long one may be queued for room before it gets 429. One that is queued first and
    then held may take twice as long."""
    request_timeout: Duration = Duration("1h")
    """Longest life of one request."""
    max_body_size: Quantity = Quantity("32Mi")
    """Largest request body; a larger one gets 413. A change replaces engine and gateway pods."""
    per_key: KeyLimits | None = None
    """What every key may use; without gateway.auth all clients together are one; absent = no limit."""
    keys: Annotated[
        list[NamedKeyLimits],
        Field(
            max_length=256,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
        AfterValidator(_each_once),
    ] = []
    """What single keys may use instead."""

    rules = (
        Rule(
            cel="self.queueTimeout.matches('[1-9]')",
            message="limits.queueTimeout is 0, and a request needs a moment to find a place: give it 1ms",
            holds=lambda self: self.queue_timeout.seconds > 0,
        ),
        Rule(
            cel="self.requestTimeout.matches('[1-9]')",
            message="limits.requestTimeout is 0, so every request would be cut at once: give them some time",
            holds=lambda self: self.request_timeout.seconds > 0,
        ),
        Rule(
            cel="type(self.maxBodySize) == string ? self.maxBodySize.matches('[1-9]') : self.maxBodySize > 0",
            message="limits.maxBodySize is 0, so every request would get 413: give bodies some bytes",
            holds=lambda self: self.max_body_size.bytes > 0,
        ),
    )


class InferencePool(ApiModel):
    """The engines as an InferencePool of the Gateway API Inference Extension, for a proxy that sends requests
    to them itself and asks the gateway pods which one to take."""

    proxy_namespace: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    ]
    """Namespace that the proxy's pods run in; besides the gateway they alone may send requests to engines."""


class Gateway(ApiModel):
    """The gateway pods."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image of the gateway; absent = the operator's `--gateway-image`."""
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Gateway pods. A change from several to another number replaces no pod."""
    routing: Routing = Routing()
    """How an engine is chosen."""
    auth: Auth | None = None
    """Authentication of clients; absent = anyone who reaches the Service may call it. Giving or removing
    it replaces engine and gateway pods."""
    cors_origins: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=ORIGIN)]], Field(max_length=64)
    ] = []
    """Origins whose pages may call the endpoint from a browser, such as https://chat.example.org, or * for
    all; absent = none."""
    limits: Limits = Limits()
    """Admission limits of each gateway pod."""
    inference_pool: InferencePool | None = None
    """An InferencePool of the same name, with the gateway pods as its endpoint picker; absent = none. The
    cluster needs the kind inference.networking.k8s.io/v1."""
    pod_template: FreeForm | None = None
    """Pod template (metadata, spec) that is merged strategically into the gateway pods."""

    rules = (
        Rule(
            cel="has(self.auth) || !has(self.limits.keys) || size(self.limits.keys) == 0",
            message="limits.keys is for keys by name, and without auth there are none: name a Secret in "
            "auth, or take limits.perKey",
            holds=lambda self: self.auth is not None or not self.limits.keys,
        ),
    )


class Redis(ApiModel):
    """A Redis that all gateways and engines of the deployment share."""

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
    """Secret whose key url holds the whole address with its password; instead of url."""

    rules = (
        Rule(
            cel="has(self.url) != has(self.secretRef)",
            message="redis needs either url or secretRef: give exactly one",
            holds=lambda self: (self.url is None) != (self.secret_ref is None),
        ),
    )


class PrefixIndex(ApiModel):
    """How gateways learn which engine can resume which prefix."""

    redis: Redis | None = None
    """Engines publish what they have cached there, gateways follow it; absent = gateways ask each engine."""


class Telemetry(ApiModel):
    """Traces of gateways and engines. Metrics are always served at /metrics."""

    otlp_endpoint: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^https?://.+$")] | None = (
        None
    )
    """OTLP endpoint that gateways and engines send spans to, such as http://collector.observability.svc:4318;
    absent = no traces."""
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    """How they are sent; a collector's usual ports are 4318 for http/protobuf and 4317 for grpc."""
    sampling: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of requests whose spans are kept, chosen by trace id; a client whose traceparent header says so
    decides for its own requests."""
    slow_after: Duration = Duration("10s")
    """A request without a first byte for so long is kept beyond that share, as one that failed is; 0s = slow
    ones are not."""
