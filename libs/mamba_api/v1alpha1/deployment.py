"""`MambaDeployment`: the whole object, its metadata, and the rules that span several parts of the spec."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mamba_api.choices import DRAFT_MODEL, ON_CPUS, Transport
from mamba_api.model_uri import DOWNLOADED, DOWNLOADED_PATTERN
from mamba_api.names import MAX_NAME_LENGTH
from mamba_api.v1alpha1.base import ApiModel, FreeForm, Rule
from mamba_api.v1alpha1.engine import Engine, Memory, Model, StateCache, TieredStateCache, Workload
from mamba_api.v1alpha1.gateway import Gateway, PrefixIndex, Telemetry
from mamba_api.v1alpha1.pods import ReplicaCount, Resources, Rollout, Scaling, Scheduling
from mamba_api.v1alpha1.pools import Disaggregation
from mamba_api.v1alpha1.status import Status

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


class Metadata(ApiModel):
    """The parts of Kubernetes' ObjectMeta that mambaserve reads. The rest is stored unchanged."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, pattern=NAME_PATTERN)]
    """Name of the deployment, its Service and its endpoint."""
    namespace: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Namespace. In a file it defaults to the one kubectl uses; in local mode to `default`."""
    labels: dict[str, str] = {}
    """Labels of the object."""
    annotations: dict[str, str] = {}
    """Annotations of the object."""
    uid: str | None = None
    """Identity of the object; set by the API server."""
    generation: int | None = None
    """Number that rises with each change of the spec; set by the API server."""
    resource_version: str | None = None
    """Version of the object; set by the API server."""
    deletion_timestamp: str | None = None
    """Time at which deletion was requested; set by the API server."""
    finalizers: list[str] = []
    """Names of the steps to finish before the object is removed."""


def _interval_of_pool(pool: str) -> Rule:
    """Return the rule that a pool's own track interval consists of whole pages."""
    cache = f"self.disaggregation.{pool}.stateCache"
    return Rule(
        cel=f"!has(self.disaggregation) || !has({cache}) || !has({cache}.trackInterval) || "
        f"{cache}.trackInterval % self.engine.pageSize == 0",
        message=(
            f"disaggregation.{pool}.stateCache.trackInterval must be a multiple of engine.pageSize, because "
            "a checkpoint needs whole pages: change one so that the page size divides the interval"
        ),
        holds=lambda self: (
            self.disaggregation is None
            or (own := getattr(self.disaggregation, pool).state_cache) is None
            or own.track_interval is None
            or own.track_interval % self.engine.page_size == 0
        ),
    )


def _quantization_of_pool(pool: str) -> Rule:
    """Return the rule that engines of a pool have no GPUs if `engine.quantization` is int8."""
    resources = f"self.disaggregation.{pool}.resources"
    return Rule(
        cel=f"self.engine.quantization != 'int8' || !has(self.disaggregation) || !has({resources}) || "
        f"!has({resources}.gpus) || {resources}.gpus == 0",
        message=(
            f"engine.quantization int8 is for engines without GPUs: remove it, choose fp8 or int4, or set "
            f"disaggregation.{pool}.resources.gpus to 0"
        ),
        holds=lambda self: (
            self.engine.quantization not in ON_CPUS
            or self.disaggregation is None
            or (own := getattr(self.disaggregation, pool).resources) is None
            or "gpus" not in own.model_fields_set
            or own.gpus == 0
        ),
    )


def _transport_of_pool(pool: str) -> Rule:
    """Return the rule that a pool whose engines have GPUs uses the transport Sockets."""
    own = f"self.disaggregation.{pool}.resources"
    return Rule(
        cel="!has(self.disaggregation) || self.disaggregation.transport == 'Sockets' || "
        f"(has({own}) && has({own}.gpus) && {own}.gpus == 0) || "
        f"((!has({own}) || !has({own}.gpus)) && ((has(self.resources.gpus) && self.resources.gpus == 0) || "
        "(!has(self.resources.gpus) && (has(self.resources.profile) || "
        f"(has({own}) && has({own}.profile))))))",
        message=(
            "disaggregation.transport Nixl is for engines without GPUs in this version, whose states are in "
            f"host memory: use Sockets, or set disaggregation.{pool}.resources.gpus to 0"
        ),
        holds=lambda self: (
            self.disaggregation is None
            or self.disaggregation.transport == "Sockets"
            or _may_have_no_gpus(self.resources, getattr(self.disaggregation, pool).resources)
        ),
    )


def _may_have_no_gpus(resources: Resources, of_pool: Resources | None) -> bool:
    """Return whether a pool's engines have no GPUs, or their profile decides it."""
    parts = [part for part in (of_pool, resources) if part is not None]
    for part in parts:
        if "gpus" in part.model_fields_set:
            return part.gpus == 0
    return any(part.profile is not None for part in parts)


class Spec(ApiModel):
    """The desired state of the deployment."""

    model: Model
    """The model to serve. A change replaces the engine pods, except a change of cache.size."""
    mode: Literal["Active", "Plan"] = "Active"
    """Active serves the model. Plan computes and shows the plan and creates nothing."""
    replicas: ReplicaCount = 1
    """Number of engines, within scaling.minReplicas and maxReplicas; `kubectl scale` and autoscalers write
    it. Where the operator decides, it starts from this number, and from each other number that is written
    here later. Gateways know the cached prefixes of at most 1,024 engines; further engines are chosen by load
    alone. With 0, no engine runs until a request arrives, which starts one; it stops when no request has come
    for scaling.scaleDownDelay."""
    engine: Engine = Engine()
    """How each engine runs. A change replaces the engine pods."""
    state_cache: TieredStateCache = TieredStateCache()
    """How recurrent states are cached and reused. A change replaces the engine pods, except for fields whose
    description says that running engines apply a change."""
    memory: Memory = Memory()
    """Memory budget of one engine. A change replaces the engine pods."""
    workload: Workload | None = None
    """Expected traffic. Defaults to a cautious assumption of the planner. Once engines have measured their
    traffic, the strategy follows the measurement instead (see workloadSource). A change replaces the engine
    pods."""
    workload_source: Literal["Measured", "Declared"] = "Measured"
    """Traffic that stateCache.strategy Auto is chosen for. Measured: the traffic that engines see, once they
    have served some hundred requests; another strategy has to win by a margin for half an hour, is announced
    in status.workload, and is sent to running engines ten minutes later. Declared: always what spec.workload
    says or the planner assumes; measured traffic is still shown. Running engines apply a change."""
    resources: Resources = Resources()
    """Resources that each engine pod requests from the cluster. A change replaces the engine pods."""
    scheduling: Scheduling = Scheduling()
    """Nodes that engine pods may run on. A change replaces the engine pods."""
    scaling: Scaling = Scaling()
    """Policy and bounds for the number of engines."""
    disaggregation: Disaggregation | None = None
    """Separate pools of engines for prompts and for answers, in place of engines that do both. The fields
    resources, stateCache and workload of the spec are the defaults of both pools; replicas and scaling are
    those of unified engines and stay at their defaults. Adding or removing it replaces the engine pods: the
    old ones end once the new ones serve."""
    gateway: Gateway = Gateway()
    """The OpenAI endpoint in front of the engines. A change replaces the gateway pods."""
    prefix_index: PrefixIndex = PrefixIndex()
    """How gateways learn which engine can resume which prefix. A change replaces engine and gateway pods."""
    telemetry: Telemetry = Telemetry()
    """Where traces are sent. A change replaces engine and gateway pods."""
    rollout: Rollout = Rollout()
    """How pods are replaced."""
    pod_template: FreeForm | None = None
    """Pod template (metadata, spec) that is merged strategically into the engine pods. The parts that do not
    concern engines (labels, annotations, imagePullSecrets, securityContext, DNS, further volumes,
    environment) also apply to the loader of spec.model.cache, whose resources are set by an init container
    named loader in this template. A change replaces the engine pods."""

    rules = (
        Rule(
            cel="self.stateCache.trackInterval % self.engine.pageSize == 0",
            message=(
                "stateCache.trackInterval must be a multiple of engine.pageSize, because a checkpoint needs "
                f"whole pages: their defaults are {StateCache().track_interval} and "
                f"{Engine().page_size}; change one so that the page size divides "
                "the interval, such as 250 and 10, or 255 and 3"
            ),
            holds=lambda self: self.state_cache.track_interval % self.engine.page_size == 0,
        ),
        Rule(
            cel="self.engine.quantization != 'int8' || "
            "(has(self.resources.gpus) && self.resources.gpus == 0) || "
            "(has(self.resources.profile) && !has(self.resources.gpus))",
            message=(
                "engine.quantization int8 is for engines without GPUs: remove it, choose fp8 or int4, or set "
                "resources.gpus to 0"
            ),
            holds=lambda self: (
                self.engine.quantization not in ON_CPUS
                or not self.resources.gpus
                or self.resources.leaves_gpus_open
            ),
        ),
        Rule(
            cel="self.engine.quantization != 'fp8' || !self.engine.batchInvariant",
            message=(
                "engine.quantization fp8 and batchInvariant exclude each other in this version: set "
                "batchInvariant to false, or remove quantization"
            ),
            holds=lambda self: self.engine.quantization != "fp8" or not self.engine.batch_invariant,
        ),
        Rule(
            cel="!self.engine.batchInvariant || !(has(self.model.maxAdapters) || "
            "(has(self.model.adapters) && size(self.model.adapters) > 0))",
            message=(
                "engine.batchInvariant and model.adapters exclude each other in this version: set "
                "batchInvariant to false, or remove model.adapters and maxAdapters"
            ),
            holds=lambda self: not (self.engine.batch_invariant and self.model.has_adapters),
        ),
        Rule(
            cel="!has(self.model.cache) || !has(self.engine.speculation) || "
            f"!self.engine.speculation.matches('^{DRAFT_MODEL}{DOWNLOADED_PATTERN.removeprefix('^')}')",
            message=(
                "model.cache holds the model and its adapters, and in this version no draft model: use "
                "pvc://, file:// or builtin:// in engine.speculation, or remove model.cache"
            ),
            holds=lambda self: self.model.cache is None or self.draft_scheme not in DOWNLOADED,
        ),
        Rule(
            cel="!has(self.engine.speculation) || self.engine.speculation != 'Mtp' || "
            "!(has(self.model.maxAdapters) || (has(self.model.adapters) && size(self.model.adapters) > 0))",
            message=(
                "engine.speculation Mtp and model.adapters exclude each other in this version, as the head "
                "has no adapters: choose another speculation, or remove model.adapters and maxAdapters"
            ),
            holds=lambda self: not (self.engine.speculation == "Mtp" and self.model.has_adapters),
        ),
        Rule(
            cel="!has(self.scaling.minReplicas) || self.replicas >= self.scaling.minReplicas || "
            "(self.scaling.mode == 'Internal' && has(self.scaling.maxReplicas) && "
            "self.scaling.minReplicas < self.scaling.maxReplicas)",
            message=(
                "spec.replicas is below scaling.minReplicas, and nothing would raise it: set spec.replicas "
                "to the number of engines wanted, lower minReplicas, or set a maxReplicas above it in mode "
                "Internal, so that the operator decides"
            ),
            holds=lambda self: (
                self.scaling.min_replicas is None
                or self.replicas >= self.scaling.min_replicas
                or self.scaling.automatic
            ),
        ),
        Rule(
            cel="!has(self.scaling.maxReplicas) || self.replicas <= self.scaling.maxReplicas",
            message="spec.replicas is above scaling.maxReplicas: lower spec.replicas or raise maxReplicas",
            holds=lambda self: (
                self.scaling.max_replicas is None or self.replicas <= self.scaling.max_replicas
            ),
        ),
        *(_interval_of_pool(pool) for pool in ("prefill", "decode")),
        *(_quantization_of_pool(pool) for pool in ("prefill", "decode")),
        *(_transport_of_pool(pool) for pool in ("prefill", "decode")),
        Rule(
            cel="!has(self.disaggregation) || (self.replicas == 1 && self.scaling.mode == 'Internal' && "
            "!has(self.scaling.minReplicas) && !has(self.scaling.maxReplicas) && "
            "duration(self.scaling.scaleDownDelay) == duration('300s'))",
            message=(
                "spec.replicas and scaling are for unified engines, and with disaggregation each pool has "
                "its own number: set disaggregation.prefill.replicas and decode.replicas, or scaling of "
                "each pool, and remove spec.replicas, scaling.mode, minReplicas, maxReplicas and "
                "scaleDownDelay"
            ),
            holds=lambda self: (
                self.disaggregation is None
                or (
                    self.replicas == 1
                    and self.scaling.mode == "Internal"
                    and self.scaling.min_replicas is None
                    and self.scaling.max_replicas is None
                    and self.scaling.scale_down_delay.seconds == Scaling().scale_down_delay.seconds
                )
            ),
        ),
        Rule(
            cel="!has(self.disaggregation) || !has(self.disaggregation.handOverTokens) || "
            "!has(self.model.maxModelLen) || self.disaggregation.handOverTokens <= self.model.maxModelLen",
            message=(
                "disaggregation.handOverTokens is above model.maxModelLen, so that no prompt would ever be "
                "handed over: lower it, or remove disaggregation"
            ),
            holds=lambda self: (
                self.disaggregation is None
                or self.disaggregation.hand_over_tokens is None
                or self.model.max_model_len is None
                or self.disaggregation.hand_over_tokens <= self.model.max_model_len
            ),
        ),
        Rule(
            cel="!has(self.disaggregation) || self.stateCache.prefixCaching",
            message=(
                "with disaggregation, engines hand states over through their prefix caches: set "
                "stateCache.prefixCaching to true, or remove disaggregation"
            ),
            holds=lambda self: self.disaggregation is None or self.state_cache.prefix_caching,
        ),
        Rule(
            cel="!has(self.disaggregation) || !has(self.gateway.inferencePool)",
            message=(
                "the proxy of gateway.inferencePool sends each request to one engine, which cannot hand it "
                "over: remove inferencePool or disaggregation"
            ),
            holds=lambda self: self.disaggregation is None or self.gateway.inference_pool is None,
        ),
        Rule(
            cel="!has(self.rollout.canary) || !has(self.disaggregation)",
            message=(
                "rollout.canary is for unified engines, because a conversation of two pools is served by "
                "engines of both: remove canary or disaggregation"
            ),
            holds=lambda self: self.rollout.canary is None or self.disaggregation is None,
        ),
        Rule(
            cel="!has(self.rollout.canary) || !has(self.gateway.inferencePool)",
            message=(
                "rollout.canary needs gateways that see whole requests, and with gateway.inferencePool a "
                "proxy sends them: remove canary or inferencePool"
            ),
            holds=lambda self: self.rollout.canary is None or self.gateway.inference_pool is None,
        ),
    )

    @property
    def draft_scheme(self) -> str | None:
        """Scheme of the second model that drafts; None = none does."""
        draft = self.engine.draft_location
        return None if draft is None else draft.scheme

    @property
    def source_schemes(self) -> frozenset[str]:
        """Schemes of all that engines read themselves: the model, its adapters, and a draft model."""
        draft, schemes = self.draft_scheme, self.model.read_schemes
        return schemes if draft is None else schemes | {draft}


class MambaDeployment(ApiModel):
    """A hybrid Mamba2/attention model served behind one OpenAI-compatible endpoint."""

    api_version: Literal["serving.mambaserve.io/v1alpha1"] = "serving.mambaserve.io/v1alpha1"
    """Version of the API that the object is written in."""
    kind: Literal["MambaDeployment"] = "MambaDeployment"
    """Always MambaDeployment."""
    metadata: Metadata
    """Name, namespace, labels and annotations."""
    spec: Spec
    """The desired state of the deployment."""
    status: Status | None = None
    """The observed state of the deployment and the decisions of the operator."""

    rules = (
        Rule(
            # A rule of the whole object is looked at again at each write of the status, also of an object
            # that was stored before its spec needed a model.
            cel="!has(self.spec.model) || has(self.spec.model.servedName) || "
            "!has(self.spec.model.adapters) || "
            "!self.spec.model.adapters.exists(a, a.name == self.metadata.name)",
            message=(
                "an adapter of model.adapters has the name of the object, which is that of the model: give "
                "the adapter another one, or set model.servedName"
            ),
            holds=lambda self: (
                self.spec.model.served_name is not None
                or all(adapter.name != self.metadata.name for adapter in self.spec.model.adapters)
            ),
        ),
    )

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """metadata.namespace, or `default`."""
        return self.metadata.namespace or "default"

    @property
    def served_name(self) -> str:
        """Name of the model in the OpenAI API."""
        return self.spec.model.served_name or self.metadata.name

    @property
    def transport(self) -> Transport:
        """How states travel between the engines."""
        pools = self.spec.disaggregation
        return pools.transport if pools is not None else "Sockets"

    def with_status(self, status: Status) -> "MambaDeployment":
        """Return a copy with another status."""
        return self.model_copy(update={"status": status})
