"""Models of one engine: `spec.model`, `engine`, `stateCache`, `memory` and `workload`.

These five decide what runs in an engine and how its memory is split; the planner reads all of them. Where and
how many engines run is decided in `pods`.
"""

import re
from typing import Annotated, Literal

from pydantic import Field
from pydantic.alias_generators import to_snake

from mamba_api.choices import DRAFT_MODEL, Eviction, Quantization, StrategyChoice
from mamba_api.model_uri import (
    DOWNLOADED,
    DOWNLOADED_PATTERN,
    PINNED_PATTERN,
    REMOTE,
    REMOTE_PATTERN,
    ModelUri,
    parse_model_uri,
)
from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import (
    ApiModel,
    ChangeRule,
    FreeForm,
    ObjectName,
    Rule,
    SecretKeyRef,
    SecretRef,
    each_once,
    map_by,
)
from mamba_api.v1alpha1.model_source import PLACES_STEP, Adapter, Adapters, Drafts, Uri


class ModelCache(ApiModel):
    """A volume that keeps downloaded weights, so that engines need no download to start.

    With size, the operator creates the volume and a Job fills it before engines start; engines serve the
    commit that the Job downloaded. With claimName, you provide the volume.
    """

    size: Quantity | None = None
    """Size of the volume. It must hold the weights, and after a change of the URI also the weights of the
    next model. It may grow where the storage class allows it. If a download needs more room, copies that no
    engine reads and no roll-back needs are removed."""
    claim_name: ObjectName | None = None
    """Name of an existing claim in the same namespace, for example of a local volume (a directory on each
    node of a group). Each engine pod first downloads what is missing, one pod per directory at a time.
    Nothing is ever removed from the claim."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume. Defaults to the default class of the cluster."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Access mode of the volume. ReadWriteMany lets all nodes share it and needs a storage class that
    supports this mode; the default classes of most clouds do not. ReadWriteOnce is enough on one node."""

    rules = (
        Rule(
            cel="has(self.size) != has(self.claimName)",
            message=(
                "model.cache needs either size, for a new volume that a Job fills, or claimName, for an "
                "existing claim that engine pods fill: set one of them"
            ),
            holds=lambda self: (self.size is None) != (self.claim_name is None),
        ),
        Rule(
            cel="!has(self.claimName) || (!has(self.storageClassName) && self.accessMode == 'ReadWriteMany')",
            message=(
                "model.cache.storageClassName and accessMode are for a new volume, and the claim of "
                "claimName has its own: remove them"
            ),
            holds=lambda self: (
                self.claim_name is None
                or (self.storage_class_name is None and self.access_mode == "ReadWriteMany")
            ),
        ),
    )
    change_rules = (
        ChangeRule(
            cel=(
                "has(self.size) != has(oldSelf.size) || "
                "self.accessMode == oldSelf.accessMode && has(self.storageClassName) == "
                "has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == "
                "oldSelf.storageClassName)"
            ),
            message=(
                "model.cache.storageClassName and accessMode cannot change, because those of a volume "
                "cannot: remove model.cache, delete the PersistentVolumeClaim NAME-model, then set "
                "model.cache again"
            ),
        ),
        ChangeRule(
            cel=(
                "!has(self.size) || !has(oldSelf.size) || "
                "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0"
            ),
            message=(
                "model.cache.size cannot shrink, because a volume cannot: remove model.cache, delete the "
                "PersistentVolumeClaim NAME-model, then set model.cache again"
            ),
        ),
    )


def _needs_adapters(field: str, what: str) -> Rule:
    """Return the rule that refuses `model.FIELD` in a spec whose engines hold no adapters.

    `what` names the field's value in the message: "the rank" of adapters.
    """
    return Rule(
        cel=f"!has(self.{field}) || has(self.maxAdapters) || (has(self.adapters) && size(self.adapters) > 0)",
        message=(
            f"model.{field} is {what} of adapters, and there are none: remove it, or set model.adapters or "
            "model.maxAdapters"
        ),
        holds=lambda self: getattr(self, to_snake(field)) is None or self.has_adapters,
    )


class ImageVolume(ApiModel):
    """How the image of a model is mounted into engines."""

    path: Annotated[str, Field(max_length=512, pattern=r"^/([A-Za-z0-9_-][A-Za-z0-9._-]*/?)*$")] = "/"
    """Folder of the image that has the model's config.json."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When nodes pull the image, as with the image of a container. Defaults to Always for the tag latest and
    to IfNotPresent for others."""


class Model(ApiModel):
    """The model that is served."""

    uri: Uri
    """Where the weights are: hf://owner/name[@revision], pvc://claim/path, s3://bucket/prefix,
    gs://bucket/prefix, oci://registry/repository:tag (or @sha256:digest), https://host/path/, file:///path
    (in local mode relative to the YAML if it starts with file://./) or builtin://tiny-recall. Buckets and
    web servers take ?revision=, the commit that a download reported; an archive (.tar, .tar.gz, .tgz) takes
    ?sha256=. A change starts a roll-out."""
    served_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the model in the OpenAI API, which gateways also list while no engine runs. Defaults to
    metadata.name. A change replaces engine and gateway pods."""
    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Maximum length of prompt plus output in tokens. Defaults to the model's own limit."""
    config: FreeForm | None = None
    """The model's Hugging Face config.json, inline, so that the plan is known before any pod starts. A change
    replaces no pod unless the plan then takes another stateDtype."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the access token for gated models and adapters; for hf:// only."""
    secret_ref: SecretRef | None = None
    """Secret with the credentials for other sources. For s3:// its keys are AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY and, where needed, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL; for gs://
    GOOGLE_SERVICE_ACCOUNT_KEY, the JSON of a key; for oci:// .dockerconfigjson, as in Secrets for images; for
    https:// MAMBASERVE_MODEL_TOKEN, a bearer token. Without it the identity of the workload is used."""
    cache: ModelCache | None = None
    """Volume that keeps downloaded weights. With size, the plan also knows their configuration
    before any engine starts. If absent, each pod downloads into its own scratch space."""
    image_volume: ImageVolume | None = None
    """Mounts the image of an oci:// URI into engines instead of downloading it. The node pulls and keeps it;
    secretRef then is a Secret for image pulls. It needs a cluster that has image volumes (Kubernetes 1.35,
    or the feature gate ImageVolume from 1.33 on). A change replaces engine pods."""
    adapters: Adapters = []
    """LoRA adapters that each engine serves beside the model; a request names one as its `model`. Running
    engines load and unload what changes. Pods are replaced only if the places of maxAdapters become more or
    fewer, or a claim has to be mounted."""
    max_adapters: Annotated[int, Field(ge=1, le=256)] | None = None
    """Number of adapters that an engine can hold at once, for which memory is reserved. Defaults to one more
    than adapters names, rounded up to a multiple of 4; to none without adapters."""
    max_adapter_rank: Annotated[int, Field(ge=1, le=512)] | None = None
    """Largest rank of an adapter, for which memory is reserved. Defaults to 16."""
    max_adapter_expert_rank: Annotated[int, Field(ge=1, le=512)] | None = None
    """Largest rank of an adapter's changes of experts, for which memory is reserved for every expert. If
    absent, adapters that change experts are refused."""

    rules = (
        Rule(
            cel="!has(self.maxAdapters) || !has(self.adapters) || size(self.adapters) <= self.maxAdapters",
            message=(
                "model.adapters names more adapters than model.maxAdapters: raise maxAdapters, or remove it"
            ),
            holds=lambda self: self.max_adapters is None or len(self.adapters) <= self.max_adapters,
        ),
        _needs_adapters("maxAdapterRank", "the rank"),
        _needs_adapters("maxAdapterExpertRank", "a rank"),
        Rule(
            cel="!has(self.servedName) || !has(self.adapters) || "
            "!self.adapters.exists(a, a.name == self.servedName)",
            message=(
                "an adapter of model.adapters has the name of the model: give it another one, or change "
                "model.servedName"
            ),
            holds=lambda self: all(adapter.name != self.served_name for adapter in self.adapters),
        ),
        Rule(
            cel="!has(self.cache) || !has(self.cache.claimName) || !has(self.adapters) || "
            f"self.adapters.all(a, !a.uri.matches('{DOWNLOADED_PATTERN}') || "
            f"a.uri.matches('{PINNED_PATTERN}'))",
            message=(
                "with model.cache.claimName each node downloads adapters for itself: name the commit of each "
                "in model.adapters[].uri, as for model.uri"
            ),
            holds=lambda self: (
                self.cache is None
                or self.cache.claim_name is None
                or all(adapter.is_pinned for adapter in self.downloaded_adapters)
            ),
        ),
        Rule(
            cel=f"!has(self.cache) || self.uri.matches('{DOWNLOADED_PATTERN}')",
            message=(
                "model.cache keeps downloads, and nothing is downloaded from pvc://, file:// and builtin://: "
                "remove cache, or use hf://, s3://, gs://, oci:// or https://"
            ),
            holds=lambda self: self.cache is None or self.location.scheme in DOWNLOADED,
        ),
        Rule(
            cel=f"!has(self.cache) || !has(self.cache.claimName) || self.uri.matches('{PINNED_PATTERN}')",
            message=(
                "the claim of model.cache.claimName is filled by each node separately, at different times: "
                "name the commit, hf://OWNER/NAME@COMMIT with its 40 digits, @sha256:DIGEST of oci://, or "
                "?revision= of the others, so that all nodes serve the same weights"
            ),
            holds=lambda self: (
                self.cache is None
                or self.cache.claim_name is None
                or re.search(PINNED_PATTERN, self.uri) is not None
            ),
        ),
        Rule(
            cel="!has(self.imageVolume) || self.uri.matches('^oci://')",
            message=(
                "model.imageVolume mounts an image, and only oci:// names one: use oci:// for model.uri, or "
                "remove imageVolume"
            ),
            holds=lambda self: self.image_volume is None or self.location.scheme == "oci",
        ),
        Rule(
            cel="!has(self.imageVolume) || !has(self.cache)",
            message=(
                "model.imageVolume and model.cache exclude each other, because a mounted image is not "
                "downloaded: remove one of them"
            ),
            holds=lambda self: self.image_volume is None or self.cache is None,
        ),
        Rule(
            cel="!has(self.tokenSecretRef) || self.uri.matches('^hf://') || "
            "(has(self.adapters) && self.adapters.exists(a, a.uri.matches('^hf://')))",
            message=(
                "model.tokenSecretRef opens gated models of a hub, and only hf:// is one: remove it or use "
                "hf://"
            ),
            holds=lambda self: self.token_secret_ref is None or "hf" in self.schemes,
        ),
        Rule(
            cel=f"!has(self.secretRef) || self.uri.matches('{REMOTE_PATTERN}') || "
            f"(has(self.adapters) && self.adapters.exists(a, a.uri.matches('{REMOTE_PATTERN}')))",
            message=(
                "model.secretRef holds credentials for s3://, gs://, oci:// and https://: remove it, or use "
                "tokenSecretRef for hf://"
            ),
            holds=lambda self: self.secret_ref is None or bool(self.schemes & REMOTE),
        ),
    )

    @property
    def location(self) -> ModelUri:
        """The parsed URI."""
        return parse_model_uri(self.uri)

    @property
    def schemes(self) -> frozenset[str]:
        """Schemes of the model and of its adapters."""
        return frozenset((self.location.scheme, *(adapter.location.scheme for adapter in self.adapters)))

    @property
    def read_schemes(self) -> frozenset[str]:
        """Schemes of what engines read themselves: of the adapters, and of a model that is not mounted."""
        of_adapters = frozenset(adapter.location.scheme for adapter in self.adapters)
        return of_adapters if self.image_volume is not None else of_adapters | {self.location.scheme}

    @property
    def has_adapters(self) -> bool:
        """Whether engines reserve memory for adapters."""
        return bool(self.adapters) or self.max_adapters is not None

    @property
    def adapter_places(self) -> int | None:
        """Number of adapters that memory is reserved for; None without adapters.

        The default is a multiple of PLACES_STEP, so that most changes of the list leave it, and with it the
        pods, as they are.
        """
        if self.max_adapters is not None or not self.adapters:
            return self.max_adapters
        return PLACES_STEP * (len(self.adapters) // PLACES_STEP + 1)

    @property
    def downloaded_adapters(self) -> list[Adapter]:
        """Adapters that are downloaded into the model cache, in the order of the spec."""
        return [adapter for adapter in self.adapters if adapter.location.scheme in DOWNLOADED]

    @property
    def has_download_job(self) -> bool:
        """Whether the operator creates a volume, to which a Job downloads the model before engines start."""
        return self.cache is not None and self.cache.size is not None


class EnvVar(ApiModel):
    """An environment variable, as in a Kubernetes container."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Value of the variable."""
    value_from: FreeForm | None = None
    """Source of the value (secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef), as in a container."""

    rules = (
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="an environment variable has either value or valueFrom: remove one",
            holds=lambda self: self.value is None or self.value_from is None,
        ),
    )


class Engine(ApiModel):
    """Settings of every engine of the deployment."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image of the engine. Defaults to the operator's `--engine-image`."""
    dtype: Literal["Auto", "float32", "bfloat16", "float16"] = "Auto"
    """Type of weights and activations. Auto takes the type of the checkpoint."""
    quantization: Quantization = "none"
    """How matrices are stored and multiplied. none: in the type that dtype names. int8: one byte for each
    weight and a scale for every 32 of them, quantized while loading and multiplied by activations quantized
    to int8. int8 takes half the memory of bfloat16 and yields more tokens per second; answers differ
    slightly; it is available without GPUs only (resources.gpus 0). int4: four bits for each weight and such a
    scale; answers differ more. With int4, embedding and head are int8 without GPUs; with GPUs they keep the
    type that dtype names, as do activations. fp8: one byte (e4m3) for each weight and a scale for each
    output, but embedding and head in the type that dtype names; checkpoints in FP8 keep their numbers, others
    are rounded while loading, and activations are rounded to FP8 with a scale for each token. It is for GPUs
    of compute capability 8.9 and later (L4, L40S, H100, B200); CPUs compute the same numbers, slowly."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of GPUs that one engine spreads the model over. This version runs each engine on one GPU and
    refuses more."""
    page_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens per page of attention KV."""
    kv_cache_dtype: Literal["Auto", "fp8_e4m3"] = "Auto"
    """Type of the keys and values in pages of attention. Auto: that of the activations. fp8_e4m3: one byte
    for each number, and a power of two as the scale of each head of each token, which takes one byte more.
    Nearly twice as many tokens fit then; answers differ slightly. It needs no GPU of a certain kind. Models
    without attention have no pages and refuse it. The pages of a second model that drafts stay in the type of
    the activations. A change replaces engine pods."""
    step_time: Duration | None = None
    """Target duration of a step while answers are being written, which is the gap between their tokens:
    prompts are computed in pieces that fill the rest of the step. 0s sets no limit. Defaults to 200ms on a
    CPU and 50ms on a GPU, or to no limit if chunkedPrefillTokens is set."""
    chunked_prefill_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Maximum number of tokens in one step, however fast they are computed. Defaults to 2048; stepTime may
    lower it further."""
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Maximum number of sequences that run at once, even if memory holds more. Defaults to as many as memory
    holds, up to 1024 with a GPU and 32 without."""
    overlap_schedule: bool | None = None
    """Whether the CPU plans step n+1 while the device runs step n. Defaults to true with GPUs and to false
    without."""
    batch_invariant: bool = False
    """Whether a token's logits are independent of the batch that it runs in (slower)."""
    decode_graphs: Literal["Auto", "Off"] = "Auto"
    """Whether steps that only decode are captured as CUDA graphs. Auto captures every step that can be
    captured where Triton's kernels compute. Off issues each step separately, which is slower at small
    batches. Without GPUs there are no graphs."""
    speculation: Drafts | None = None
    """Whether a step checks several tokens of an answer that were drafted before. Ngram drafts what followed
    the last tokens earlier in prompt and answer. Mtp drafts with the checkpoint's own head (Nemotron 3,
    Qwen3-Next, Qwen3.5), whose keys and values are one more layer of pages. Auto drafts where that is
    measured to save time: as Ngram, and on a CPU also as Mtp if the configuration names a head and there are
    neither adapters nor pools. draft=URI drafts with a second, smaller model of the same tokenizer, whose URI
    has the forms of model.uri; it is downloaded as the model is, with the same Secrets. Answers are the same
    with and without. Drafts take memory, which the plan counts. Defaults to Auto without GPUs, unless
    batchInvariant is true, and to Off with GPUs."""
    speculative_tokens: Annotated[int, Field(ge=1, le=32)] = 7
    """Maximum number of drafted tokens of an answer in one step."""
    extra_args: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=64)] = []
    """Further arguments of `mambaserve serve`, appended to all others."""
    env: Annotated[
        list[EnvVar],
        Field(
            max_length=128,
            json_schema_extra=map_by("name"),
        ),
        each_once("name"),
    ] = []
    """Further environment variables of the engine container."""

    rules = (
        Rule(
            cel="self.tensorParallel == 1",
            message=(
                "engine.tensorParallel above 1 is refused by this version: its engines run on one GPU each; "
                "set it to 1 and choose a GPU that holds the model"
            ),
            holds=lambda self: self.tensor_parallel == 1,
        ),
        Rule(
            cel="!has(self.speculation) || self.speculation == 'Off' || !self.batchInvariant",
            message=(
                "engine.speculation and batchInvariant exclude each other in this version: set speculation "
                "to Off or batchInvariant to false"
            ),
            holds=lambda self: self.speculation in (None, "Off") or not self.batch_invariant,
        ),
    )

    @property
    def draft_uri(self) -> str | None:
        """URI of the second model that drafts; None = none does."""
        if self.speculation is None or not self.speculation.startswith(DRAFT_MODEL):
            return None
        return self.speculation.removeprefix(DRAFT_MODEL)

    @property
    def draft_location(self) -> ModelUri | None:
        """Parsed URI of the second model that drafts; None = none does."""
        return None if self.draft_uri is None else parse_model_uri(self.draft_uri)


StateDtype = Literal["float32", "float16"]


TrackInterval = Annotated[int, Field(ge=1, le=1_048_576)]
CheckpointsPerPath = Annotated[int, Field(ge=1, le=1024)]
CheckpointDepth = Annotated[int, Field(ge=0, le=16_777_216)]
AuditShare = Annotated[float, Field(ge=0, le=1)]


class StateCache(ApiModel):
    """The state cache of every engine."""

    strategy: StrategyChoice = "Auto"
    """How a running sequence writes checkpoints. NoBuffer has no spare slot and donates its own slot when the
    sequence ends. ExtraBufferLazy has one spare slot and borrows a second one around a boundary. ExtraBuffer
    has two and misses no boundary. Auto lets the planner choose. Running engines apply a change; pods are
    replaced only if the plan then takes another stateDtype."""
    state_dtype: Literal["Auto", "float32", "float16"] = "Auto"
    """Type of the stored SSM state. Auto lets the planner choose. float16 doubles the number of slots."""
    track_interval: TrackInterval = 256
    """Maximum number of tokens between checkpoints while decoding (the first checkpoints of an answer are
    closer together); a multiple of spec.engine.pageSize. Running engines apply a change."""
    max_checkpoints_per_path: CheckpointsPerPath = 4
    """Maximum number of checkpoints that a prompt adds to its path of the radix tree, and maximum number kept
    on that path when slots are short. Running engines apply a change."""
    min_checkpoint_depth: CheckpointDepth = 0
    """Minimum number of tokens that a checkpoint covers. A shorter prefix is cheap to compute again, while
    its state would take a whole slot. 0 keeps all checkpoints."""
    eviction: Eviction = "RecomputeCost"
    """Which checkpoint is evicted first when memory is short: the one expected to save least (RecomputeCost),
    or the least recently used (LRU). Running engines apply a change."""
    prefix_caching: bool = True
    """Whether requests that share a prefix reuse checkpoints."""
    audit_share: AuditShare = 0.0002
    """Share of the answers resumed from a checkpoint that are audited: computed once more without the cache
    while the engine has nothing else to do. If an answer differs by more than rounding, its checkpoint is
    never resumed again. 0 audits nothing."""


def above_zero(field: str, name: str) -> Rule:
    """Return the rule that a size is above zero, because a tier of no bytes keeps nothing.

    Args:
        field: name of the size inside its model, in YAML spelling.
        name: name of the size in the message.
    """
    attribute = to_snake(field)
    return Rule(
        cel=f"!has(self.{field}) || (type(self.{field}) == string ? self.{field}.matches('[1-9]') : "
        f"self.{field} > 0)",
        message=f"{name} is 0, which keeps nothing: set it above 0, such as 16Gi, or remove it",
        holds=lambda self: (size := getattr(self, attribute)) is None or size.value > 0,
    )


class DiskCache(ApiModel):
    """Space on a disk to which an engine writes states that its memory has no room for."""

    size: Quantity
    """Size of the space of one engine, such as 100Gi. The scheduler reserves as many bytes of the node's
    ephemeral storage, or the volume has that size."""
    storage_class_name: ObjectName | None = None
    """Storage class of a volume for each engine, which is deleted with its pod. Defaults to the node's own
    disk."""
    claim_name: ObjectName | None = None
    """Existing claim in the same namespace that the engines share, and that outlives their pods: each engine
    takes a folder in it that no other one uses, and resumes from what an earlier engine left there. The claim
    has to hold size for each engine, and one more for each that a roll-out adds; its file system needs file
    locks (flock). With several nodes it needs the access mode ReadWriteMany."""

    rules = (
        above_zero("size", "stateCache.disk.size"),
        Rule(
            cel="!has(self.storageClassName) || !has(self.claimName)",
            message=(
                "stateCache.disk has either storageClassName, for a new volume of each engine, or claimName, "
                "for an existing claim that engines share: remove one of them"
            ),
            holds=lambda self: self.storage_class_name is None or self.claim_name is None,
        ),
    )


class TieredStateCache(StateCache):
    """The state cache of every engine, and the slower memory below it."""

    host_memory: Quantity | None = None
    """Main memory of one engine for states that its arena has no room for. Pods request it in addition to
    resources.memory. If absent, such states go to the disk, or are lost."""
    disk: DiskCache | None = None
    """Disk space of one engine for such states, from which prompts also resume after the engine restarts in
    its pod. If absent, nothing is written to a disk."""

    rules = (
        Rule(
            cel="self.prefixCaching || (!has(self.hostMemory) && !has(self.disk))",
            message=(
                "stateCache.hostMemory and disk keep states for later prompts, and prefixCaching is false: "
                "set it to true, or remove hostMemory and disk"
            ),
            holds=lambda self: self.prefix_caching or (self.host_memory is None and self.disk is None),
        ),
        above_zero("hostMemory", "stateCache.hostMemory"),
    )


class Memory(ApiModel):
    """Memory that one engine may take."""

    device_memory: Quantity | None = None
    """Memory of one GPU, such as 80Gi. Defaults to the node label nvidia.com/gpu.memory, or to what the
    device reports."""
    utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the device memory that the engine may take for weights, workspace and arena; on a GPU at most
    what is free when the engine starts."""
    arena: Quantity | None = None
    """Exact size of the arena that KV pages and state slots share. Defaults to what the planner computes. On
    a machine without a GPU this sets how much main memory to use."""


MeanTokens = Annotated[int, Field(ge=1, le=16_777_216)]
Share = Annotated[float, Field(ge=0, le=1)]
Concurrency = Annotated[int, Field(ge=1, le=65_536)]


class Workload(ApiModel):
    """Traffic that the plan is computed for."""

    prompt_tokens: MeanTokens = 2048
    """Mean prompt length in tokens."""
    output_tokens: MeanTokens = 256
    """Mean output length in tokens."""
    shared_prefix_ratio: Share = 0.5
    """Share of prompt tokens that an earlier request also had."""
    concurrency: Concurrency | None = None
    """Number of sequences that one engine should run at once. The plan prefers a choice that reaches it."""
