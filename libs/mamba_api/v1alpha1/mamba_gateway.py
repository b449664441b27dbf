"""`MambaGateway`: one address for the models of several MambaDeployments, and its rules."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, Rule, each_once, map_by
from mamba_api.v1alpha1.deployment import Metadata
from mamba_api.v1alpha1.gateway import ORIGIN, Auth, Redis
from mamba_api.v1alpha1.gateway_status import GatewayStatus
from mamba_api.v1alpha1.gateway_usage import READERS_NEED_AUTH, KeyName, UsageOfModels

ModelName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+$")]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./]*$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
Host = Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$")]
EVERY_MODEL = "*"
"""Entry of a key's list that stands for all models."""


class LabelRequirement(ApiModel):
    """A condition on the value of one label."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In and NotIn compare with values; Exists and DoesNotExist ask for the key alone."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = []
    """Values of In and NotIn."""

    rules = (
        Rule(
            cel="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            message="the operators In and NotIn need values, and no other takes any: add or remove values",
            holds=lambda self: (self.operator in ("In", "NotIn")) == bool(self.values),
        ),
    )


class LabelSelector(ApiModel):
    """A choice of objects by their labels, as elsewhere in Kubernetes. Without a condition it matches all."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=32)] = {}
    """Labels that an object must have."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=32)] = []
    """Further conditions, all of which must hold."""

    def matches(self, labels: dict[str, str]) -> bool:
        """Return whether an object with these labels is chosen."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            _MATCHES[part.operator](labels.get(part.key), part.values) for part in self.match_expressions
        )


_MATCHES: dict[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


class ModelAliases(ApiModel):
    """Further names of one model."""

    model: ModelName
    """Name of the model, or of an adapter of one."""
    names: Annotated[list[ModelName], Field(min_length=1, max_length=31)]
    """Names under which requests reach the model, too. A name given here is never the served name of another
    model at this address."""

    rules = (
        Rule(
            cel="!(self.model in self.names)",
            message="the name of a model is no alias of it: remove it from the list",
            holds=lambda self: self.model not in self.names,
        ),
    )


class ModelFallbacks(ApiModel):
    """Models that take the requests of another one while that has no ready engine."""

    model: ModelName
    """Name of the model that is replaced."""
    to: Annotated[list[ModelName], Field(min_length=1, max_length=8)]
    """Names of the models that take its requests, the first ready one of them."""

    rules = (
        Rule(
            cel="!(self.model in self.to)",
            message="a model is no fallback of its own: remove it from the list",
            holds=lambda self: self.model not in self.to,
        ),
    )


class KeyModels(ApiModel):
    """The models that one API key may use."""

    name: KeyName
    """Name of the key: the second word of its line in the Secret of auth."""
    models: Annotated[list[ModelName], Field(min_length=1, max_length=64)]
    """Names of the models that the key may use; * stands for all. A model includes its adapters, and the name
    of an adapter opens that adapter alone."""


class GatewayResources(ApiModel):
    """Resources that each gateway pod requests."""

    cpu: Quantity = Quantity("100m")
    """CPU cores."""
    memory: Quantity = Quantity("512Mi")
    """Main memory. Each model adds its tokenizer and its part of the prefix index."""


class ParentRef(ApiModel):
    """A Gateway of the Gateway API to which the HTTPRoute attaches."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the Gateway."""
    namespace: (
        Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None
    ) = None
    """Namespace of the Gateway. Defaults to the namespace of this object."""
    section_name: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
        | None
    ) = None
    """Name of one listener of the Gateway. Defaults to all listeners that allow the route."""


class HttpRoute(ApiModel):
    """An HTTPRoute of the Gateway API, which leads to this address."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=16)]
    """Gateways that shall serve the route."""
    hostnames: Annotated[list[Host], Field(max_length=16)] = []
    """Host names of the route. Defaults to the host names of the listeners."""


class MambaGatewaySpec(ApiModel):
    """The desired state of the gateway."""

    selector: LabelSelector
    """MambaDeployments of the same namespace whose models are served, by their labels; {} chooses all. The 64
    oldest of them are served. A change reaches running gateways."""
    default: ModelName | None = None
    """Name of the model that serves requests which name no model, or one that is none of the models. Without
    it, the first get 400 and the second get 404. A change reaches running gateways."""
    aliases: Annotated[
        list[ModelAliases], Field(max_length=64, json_schema_extra=map_by("model")), each_once("model")
    ] = []
    """Further names of models. A change reaches running gateways."""
    fallbacks: Annotated[
        list[ModelFallbacks], Field(max_length=64, json_schema_extra=map_by("model")), each_once("model")
    ] = []
    """Models that take the requests of another one while that has no ready engine. A change reaches running
    gateways."""
    auth: Auth | None = None
    """Authentication of clients. If absent, everybody who reaches the Service may call it, and
    MambaDeployments whose own gateway requires a key are left out. Adding or removing it replaces the
    gateway pods."""
    keys: Annotated[
        list[KeyModels], Field(max_length=256, json_schema_extra=map_by("name")), each_once("name")
    ] = []
    """Models that each API key may use. If empty, every key may use every model; otherwise a key that is
    missing here may use none. A change reaches running gateways."""
    usage: UsageOfModels = UsageOfModels()
    """The ledger of the use of all engines, and its prices, for all models or by model. Without `redis`, each
    gateway pod keeps its ledger in its memory."""
    redis: Redis | None = None
    """Redis in which the gateway pods share stored responses, the ledger, and the counts of keys for models
    whose MambaDeployment has no Redis of its own. If absent, each pod has its own. A change replaces the
    gateway pods."""
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of gateway pods; `kubectl scale` and autoscalers write it."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image of the gateway. Defaults to the operator's `--gateway-image`. A change replaces the
    gateway pods."""
    resources: GatewayResources = GatewayResources()
    """Resources that each gateway pod requests. A change replaces the gateway pods."""
    max_body_size: Quantity = Quantity("32Mi")
    """Maximum size of a request body; a larger one gets 413. A change replaces the gateway pods."""
    drain_timeout: Duration = Duration("300s")
    """Maximum time that a gateway which ends waits for its requests. A change replaces the gateway pods."""
    cors_origins: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=ORIGIN)]], Field(max_length=64)
    ] = []
    """Origins whose pages may call the address from a browser, such as https://chat.example.org, or * for
    all. Defaults to none. A change replaces the gateway pods."""
    http_route: HttpRoute | None = None
    """An HTTPRoute with the name of this object, to its Service. If absent, none is created. The cluster
    needs the kind gateway.networking.k8s.io/v1."""
    pod_template: FreeForm | None = None
    """Pod template (metadata, spec) that is merged strategically into the gateway pods. A change replaces
    them."""

    rules = (
        Rule(
            cel="has(self.auth) || !has(self.keys) || size(self.keys) == 0",
            message="keys says what named keys may use, and without auth there are no keys: name a Secret in "
            "auth, or remove keys",
            holds=lambda self: self.auth is not None or not self.keys,
        ),
        READERS_NEED_AUTH,
        Rule(
            cel="type(self.maxBodySize) == string ? self.maxBodySize.matches('[1-9]') : self.maxBodySize > 0",
            message="maxBodySize is 0, so every request would get 413: set it above 0",
            holds=lambda self: self.max_body_size.bytes > 0,
        ),
    )


class MambaGateway(ApiModel):
    """One address for the models of several MambaDeployments."""

    api_version: Literal["serving.mambaserve.io/v1alpha1"] = "serving.mambaserve.io/v1alpha1"
    """Version of the API that the object is written in."""
    kind: Literal["MambaGateway"] = "MambaGateway"
    """Always MambaGateway."""
    metadata: Metadata
    """Name, namespace, labels and annotations."""
    spec: MambaGatewaySpec
    """The desired state of the gateway."""
    status: GatewayStatus | None = None
    """The observed state of the gateway and of its models."""

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """metadata.namespace, or `default`."""
        return self.metadata.namespace or "default"
