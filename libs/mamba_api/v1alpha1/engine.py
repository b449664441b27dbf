"""What an engine is: `spec.model`, `engine`, `stateCache`, `memory` and the `workload` it is planned for.

These five decide what runs in an engine and how its memory is split; the planner reads all of them. Where and
how many engines run is `pods`.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from mamba_api.eviction import Eviction
from mamba_api.model_uri import FORMS, URI_PATTERN, ModelUri, parse_model_uri
from mamba_api.quantity import Duration, Quantity
from mamba_api.quantization import Quantization
from mamba_api.strategy import StrategyChoice
from mamba_api.v1alpha1.base import ApiModel, ChangeRule, FreeForm, ObjectName, Rule, SecretKeyRef

COMMIT = "@[0-9a-f]{40}$"
URI_RULE: JsonDict = {"rule": f"self.matches(r'{URI_PATTERN}')", "message": f"use {FORMS}"}


def _check_uri(text: str) -> str:
    parse_model_uri(text)
    return text


Uri = Annotated[
    str,
    Field(min_length=1, max_length=1024, json_schema_extra={"x-kubernetes-validations": [URI_RULE]}),
    AfterValidator(_check_uri),
]


class ModelCache(ApiModel):
    """A volume that keeps downloaded weights, from which engines serve and ask the Hub nothing. With size it
    is made, and a Job fills it before engines start; they serve the commit that it downloaded. With claimName
    it is yours."""

    size: Quantity | None = None
    """Size of the volume, at least that of the weights, and of those of the next model beside them when the
    URI changes; it may grow where the storage class allows it. Where it lacks room for what is to be
    downloaded, copies go that no engine reads and no roll-back needs."""
    claim_name: ObjectName | None = None
    """Claim of yours in the same namespace, such as one of a local volume, a directory that each node of a
    group has: each engine pod first downloads what is not there, one pod of a directory at a time.
    Nothing is removed from it."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume; absent = the cluster's default."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """ReadWriteMany lets every node share the volume, and needs a storage class that can do so, which the
    default classes of most clouds cannot; ReadWriteOnce is enough on one node."""

    rules = (
        Rule(
            cel="has(self.size) != has(self.claimName)",
            message=(
                "model.cache needs either size, for a volume that is made and that a Job fills, or "
                "claimName, for a claim of yours that engine pods fill: set one of them"
            ),
            holds=lambda self: (self.size is None) != (self.claim_name is None),
        ),
        Rule(
            cel="!has(self.claimName) || (!has(self.storageClassName) && self.accessMode == 'ReadWriteMany')",
            message=(
                "model.cache.storageClassName and accessMode are for a volume that is made, and the claim of "
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
                "cannot: remove model.cache, delete the PersistentVolumeClaim NAME-model, then set the cache "
                "anew"
            ),
        ),
        ChangeRule(
            cel=(
                "!has(self.size) || !has(oldSelf.size) || "
                "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0"
            ),
            message=(
                "model.cache.size cannot shrink, because a volume cannot: remove model.cache, delete the "
                "PersistentVolumeClaim NAME-model, then set the cache anew"
            ),
        ),
    )


class Model(ApiModel):
    """The model that is served."""

    uri: Uri
    """Where the weights are: hf://owner/name[@revision], pvc://claim/path, file:///path (in local mode
    relative to the YAML when it starts with file://./) or builtin://tiny-recall. A change is a roll-out."""
    served_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the model in the OpenAI API, which gateways list and wait for while no engine runs; absent =
    metadata.name. A change replaces engine and gateway pods."""
    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Longest prompt plus output in tokens; absent = the model's own limit."""
    config: FreeForm | None = None
    """The model's Hugging Face config.json inline, so that the plan is known before any pod starts. A change
    replaces no pod, unless the plan then takes another stateDtype."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the access token for gated models; hf:// only."""
    cache: ModelCache | None = None
    """Keep weights downloaded from hf:// on a volume; with size their configuration is known to the plan
    before any engine starts. Absent = each pod downloads into its own scratch space."""

    rules = (
        Rule(
            cel="!has(self.cache) || self.uri.matches('^hf://')",
            message="model.cache keeps downloads, and only hf:// is downloaded: remove cache or use hf://",
            holds=lambda self: self.cache is None or self.location.scheme == "hf",
        ),
        Rule(
            cel=f"!has(self.cache) || !has(self.cache.claimName) || self.uri.matches('{COMMIT}')",
            message=(
                "model.cache.claimName is filled by each node for itself, at different times: name the "
                "commit, hf://OWNER/NAME@COMMIT with its 40 digits, so that all serve the same weights"
            ),
            holds=lambda self: (
                self.cache is None or self.cache.claim_name is None or re.search(COMMIT, self.uri) is not None
            ),
        ),
        Rule(
            cel="!has(self.tokenSecretRef) || self.uri.matches('^hf://')",
            message=(
                "model.tokenSecretRef opens gated models of a hub, and only hf:// is one: remove it or use "
                "hf://"
            ),
            holds=lambda self: self.token_secret_ref is None or self.location.scheme == "hf",
        ),
    )

    @property
    def location(self) -> ModelUri:
        """The URI taken apart."""
        return parse_model_uri(self.uri)


class EnvVar(ApiModel):
    """One environment variable, as in a Kubernetes container."""

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


def _each_once(env: list[EnvVar]) -> list[EnvVar]:
    """What `x-kubernetes-list-type: map` says to the API server."""
    seen = [variable.name for variable in env]
    twice = next((name for name in seen if seen.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice: remove one")
    return env


class Engine(ApiModel):
    """Settings of every engine of the deployment."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image of the engine; absent = the operator's `--engine-image`."""
    dtype: Literal["Auto", "float32", "bfloat16", "float16"] = "Auto"
    """Type of weights and activations; Auto = the checkpoint's."""
    quantization: Quantization = "none"
    """How matrices are held and multiplied: none = as dtype says; int8 = one byte a weight and a scale for 32
    of them, quantised while loading, by activations that are made int8 as well: half the memory of bfloat16,
    more tokens, answers that differ a little. Without GPUs alone (resources.gpus 0)."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs one engine spreads the model over; this version runs each engine on one and refuses more."""
    page_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens per page of attention KV."""
    step_time: Duration | None = None
    """Time of a step while answers are being written, and so the gap between their tokens: prompts are
    computed in pieces that fill the rest of it. 0s = no such limit; absent = 200ms on a CPU and 50ms on a
    GPU, or no limit where chunkedPrefillTokens is set."""
    chunked_prefill_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Most tokens of one step, however quick they are; absent = 2048, and fewer as stepTime asks."""
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most sequences that run at once, even if memory holds more; absent = as many as it holds, up to 1024
    with a GPU and 32 without."""
    overlap_schedule: bool | None = None
    """Plan step n+1 on the CPU while the device runs step n; absent = with GPUs yes, without no."""
    batch_invariant: bool = False
    """Make a token's logits independent of the batch it runs in (slower)."""
    decode_graphs: Literal["Auto", "Off"] = "Auto"
    """Whether steps that only decode are captured as CUDA graphs: Auto = all that can be, where Triton's
    kernels compute; Off = each is issued anew, which is slower at small batches. None without GPUs."""
    extra_args: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=64)] = []
    """More arguments of `mambaserve serve`, after all others."""
    env: Annotated[
        list[EnvVar],
        Field(
            max_length=128,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
        AfterValidator(_each_once),
    ] = []
    """More environment variables of the engine container."""

    rules = (
        Rule(
            cel="self.tensorParallel == 1",
            message=(
                "engine.tensorParallel above 1 is refused by this version: its engines run on one GPU each; "
                "set it to 1 and choose a GPU that holds the model"
            ),
            holds=lambda self: self.tensor_parallel == 1,
        ),
    )


StateDtype = Literal["float32", "float16"]


class StateCache(ApiModel):
    """The state cache of every engine."""

    strategy: StrategyChoice = "Auto"
    """How a running sequence writes checkpoints: NoBuffer has no spare slot and donates its own when it
    ends, ExtraBufferLazy has one spare slot and borrows another around a boundary, ExtraBuffer has two and
    misses no boundary; Auto lets the planner choose. A change is taken over by running engines; where the
    plan takes another stateDtype for it, pods are replaced."""
    state_dtype: Literal["Auto", "float32", "float16"] = "Auto"
    """Type of the stored SSM state; Auto lets the planner choose. float16 doubles the slots."""
    track_interval: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    """Most tokens between checkpoints while decoding (the first of an answer are closer together); a multiple
    of spec.engine.pageSize. A change is taken over by running engines."""
    max_checkpoints_per_path: Annotated[int, Field(ge=1, le=1024)] = 4
    """Most checkpoints that a prompt adds to its path of the radix tree, and most kept there once slots are
    short. A change is taken over by running engines."""
    min_checkpoint_depth: Annotated[int, Field(ge=0, le=16_777_216)] = 0
    """Fewest tokens a checkpoint folds in: a shorter prefix is cheap to compute again, while its state would
    take a whole slot; 0 = keep all."""
    eviction: Eviction = "RecomputeCost"
    """Which checkpoint goes first when memory is short: the one expected to save least, or the least
    recently used. A change is taken over by running engines."""
    prefix_caching: bool = True
    """Reuse checkpoints between requests that share a prefix."""


class Memory(ApiModel):
    """What one engine may take."""

    device_memory: Quantity | None = None
    """Memory of one GPU, such as 80Gi; absent = the node label nvidia.com/gpu.memory, else what the device
    reports."""
    utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the device memory the engine may take for weights, workspace and arena; of a GPU no more than
    is free when it starts."""
    arena: Quantity | None = None
    """Exact size of the arena that KV pages and state slots share; absent = what the planner computes. On a
    machine without a GPU: how much main memory to use."""


class Workload(ApiModel):
    """Traffic that the plan is made for."""

    prompt_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = 2048
    """Mean prompt length in tokens."""
    output_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = 256
    """Mean output length in tokens."""
    shared_prefix_ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of prompt tokens that an earlier request had too."""
    concurrency: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Sequences one engine should run at once; the plan prefers a choice that meets it."""
