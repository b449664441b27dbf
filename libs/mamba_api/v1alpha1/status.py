"""`status`: what the operator saw and decided; written by it alone, read by everyone."""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.strategy import Strategy
from mamba_api.v1alpha1.base import LongText, StatusModel, Text
from mamba_api.v1alpha1.engine import StateDtype

Count = Annotated[int, Field(ge=0)]
Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class Condition(StatusModel):
    """One aspect of the deployment, as Kubernetes conditions are."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Planned, Available, Progressing, Degraded, UpToDate or Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[
        str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """One word for programs; the reference page lists them."""
    message: LongText = ""
    """What a person should know and do."""
    last_transition_time: Timestamp
    """When the status last flipped."""
    observed_generation: Count = 0
    """metadata.generation the condition was computed from."""


class LedgerEntry(StatusModel):
    """One line of the byte ledger."""

    item: Text
    """What the bytes are for."""
    bytes: int
    """How many, on one GPU."""


class RejectedChoice(StatusModel):
    """A strategy the planner did not choose."""

    strategy: Strategy
    """The strategy."""
    state_dtype: StateDtype
    """The state dtype it was tried with."""
    reason: LongText
    """Why it was rejected, with numbers."""


class OtherSize(StatusModel):
    """What the planner would choose for the same engine on a GPU of another size."""

    memory: Text
    """Memory of such a GPU, as spec.memory.deviceMemory takes it."""
    fits: bool
    """Whether the engine would run there."""
    strategy: Strategy | None = None
    """The strategy it would choose; this and what follows only where it fits."""
    state_dtype: StateDtype | None = None
    """The type of the stored SSM state."""
    slots: Count | None = None
    """Slots for states."""
    pages: Count | None = None
    """Pages for attention KV."""
    max_running_requests: Count | None = None
    """Sequences of the planned lengths that would fit at once."""
    max_model_len: Count | None = None
    """Longest sequence, in tokens."""
    checkpoints: Count | None = None
    """Reusable checkpoints beside the sequences that are planned for."""
    resumed: Text | None = None
    """Share of prompt tokens that would be resumed, estimated, such as 43%."""
    reason: LongText | None = None
    """Why it does not fit, with numbers."""


class PlanStatus(StatusModel):
    """What the planner chose for one engine."""

    strategy: Strategy
    """The chosen strategy."""
    reason: LongText
    """Why it was chosen, with numbers."""
    state_dtype: StateDtype
    """The chosen type of the stored SSM state."""
    slots: Count
    """Slots for states."""
    pages: Count
    """Pages for attention KV."""
    slots_per_sequence: Count
    """Slots one running sequence takes."""
    max_running_requests: Count
    """Sequences of the planned lengths that fit at once; shorter ones run in greater, longer ones in smaller
    number."""
    binding_constraint: Text
    """What runs out first: state slots, kv pages, memory, a configured limit, or the default limit."""
    headroom: Text
    """What is left of the budget, such as 3.1Gi."""
    ledger: Annotated[list[LedgerEntry], Field(max_length=64)] = []
    """Where every byte goes; the lines sum to the budget."""
    rejected: Annotated[list[RejectedChoice], Field(max_length=32)] = []
    """The other choices, and why not."""
    one_size_down: OtherSize | None = None
    """The same engine on a GPU of the next smaller size that is sold; absent without a GPU, with
    spec.memory.arena, or where there is no smaller one."""
    one_size_up: OtherSize | None = None
    """The same on one of the next larger size."""


class ScalingChange(StatusModel):
    """One time that the number of engines was decided anew."""

    time: Timestamp
    """When."""
    before: Count
    """Engines before."""
    after: Count
    """Engines since."""
    reason: LongText
    """Why, with numbers."""
    record: Annotated[str, Field(max_length=16_384)] = ""
    """All that the decision was made from, for `mambaserve scaling replay`; empty where none was computed."""


HISTORY = 8
"""Decisions that are kept."""


class ScalingStatus(StatusModel):
    """What the operator's autoscaler decided; absent while somebody else does."""

    current: Count = 0
    """Engine pods that exist."""
    desired: Count
    """Engines that shall run."""
    reason: LongText = ""
    """Why, with numbers."""
    binding: Annotated[str, Field(max_length=64)] = ""
    """What asks for them: prefill, decode, slots, pages, queue, history, idle, wake, bounds, data or spec."""
    last_change: Timestamp | None = None
    """When desired last changed."""
    start: Count = 0
    """The spec.replicas that was started from; another one there starts from it anew."""
    answered_wake: Annotated[str, Field(max_length=64)] | None = None
    """What a gateway last asked for before the engines stopped: only another request wakes them."""
    history: Annotated[list[ScalingChange], Field(max_length=HISTORY)] = []
    """The last decisions that changed the number, newest last."""


class RolloutStatus(StatusModel):
    """Which revision of the engines was ready, and which was not. A revision is the value of the pods' label
    serving.mambaserve.io/revision."""

    ready_revision: Annotated[str, Field(max_length=63)]
    """The last revision of which all engines were ready; engines go back to it when a later one fails."""
    failed_revision: Annotated[str, Field(max_length=63)] = ""
    """The revision of the present spec, where it failed and engines went back; empty otherwise."""
    reason: Annotated[str, Field(max_length=64)] = ""
    """What it failed of, in a word of the condition Degraded, or ErrorRateRose: it answered, and failed more
    requests than the older one beside it."""
    message: LongText = ""
    """The same with what the pod or the cluster said."""


class ProposedStrategy(StatusModel):
    """A strategy that is expected to do better for the measured traffic than the one in force."""

    strategy: Strategy
    """The strategy."""
    gain: Text
    """How many more tokens per second are expected, by a byte-count model, such as 23%."""
    since: Timestamp
    """Since when it wins by enough."""
    takes_effect: Timestamp | None = None
    """When running engines are told, if it still wins; absent until it has won for long enough."""


class WorkloadStatus(StatusModel):
    """Traffic that engines measured: means of one engine over the last half hour or so, rounded, and written
    anew when they have moved."""

    prompt_tokens: Count
    """Mean prompt length in tokens."""
    output_tokens: Count
    """Mean output length in tokens."""
    shared_prefix_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of prompt tokens that came by before, kept or not; absent with eviction LRU or without prefix
    caching, where engines do not know it."""
    concurrency: Count
    """Sequences that one engine has at once, those that wait for it included."""
    requests: Count
    """Requests that these are the means of, older ones counted less."""
    since: Timestamp
    """Since when there is anything to show."""
    time: Timestamp
    """When this was written."""
    proposed: ProposedStrategy | None = None
    """A strategy that does better for it; absent where that in force is the best, or not to be changed."""


class Status(StatusModel):
    """What the operator saw and decided."""

    observed_generation: Count = 0
    """metadata.generation this status was computed from."""
    replicas: Count = 0
    """Engine pods that exist."""
    ready_replicas: Count = 0
    """Engine pods that answer requests."""
    engines: Annotated[str, Field(max_length=32)] = ""
    """Engines that answer, of those that are wanted, such as 1/2."""
    strategy: Annotated[str, Field(max_length=64)] = ""
    """Strategy that was chosen; Auto while each engine chooses for itself when it starts, until one tells
    what it chose."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the engine pods, for the scale subresource."""
    url: Annotated[str, Field(max_length=1024)] = ""
    """OpenAI base URL inside the cluster."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    """Planned, Available, Progressing, Degraded, UpToDate, Reconciling, Stalled and Ready; Ready sums up the
    others, UpToDate says that this generation of the spec is what runs, and Reconciling and Stalled repeat it
    for tools of GitOps."""
    plan: PlanStatus | None = None
    """What the planner chose; while the operator does not know the model or the memory, what an engine told;
    absent until one answers."""
    rollout: RolloutStatus | None = None
    """The engine revision that can be gone back to, and the one that failed; absent until all engines were
    ready once."""
    scaling: ScalingStatus | None = None
    """How many engines the operator's autoscaler wants; absent while somebody else decides."""
    workload: WorkloadStatus | None = None
    """The traffic that engines measured; absent until they have served some hundred requests."""
