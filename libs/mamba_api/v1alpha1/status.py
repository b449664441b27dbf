"""Model of `status`: what the operator observed and decided. Only the operator writes it."""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.choices import Strategy
from mamba_api.v1alpha1.base import LongText, StatusModel, Text, map_by
from mamba_api.v1alpha1.canary import CanaryStatus
from mamba_api.v1alpha1.engine import StateDtype

Count = Annotated[int, Field(ge=0)]
Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class Condition(StatusModel):
    """One aspect of the object, in the form of Kubernetes conditions."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Aspect that the condition is about, such as Available or Ready; the reference page lists all types."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[
        str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """One word for programs; the reference page lists all reasons."""
    message: LongText = ""
    """Explanation for a person, with the next step."""
    last_transition_time: Timestamp
    """Time at which the status last changed."""
    observed_generation: Count = 0
    """metadata.generation the condition was computed from."""


class LedgerEntry(StatusModel):
    """One line of the byte ledger of a plan."""

    item: Text
    """Purpose of the bytes."""
    bytes: int
    """Number of bytes on one GPU."""


class RejectedChoice(StatusModel):
    """A strategy that the planner did not choose."""

    strategy: Strategy
    """Name of the strategy."""
    state_dtype: StateDtype
    """State dtype that was combined with it."""
    reason: LongText
    """Why it was rejected, with numbers."""


class OtherSize(StatusModel):
    """The planner's choice for the same engine on a GPU of another size."""

    memory: Text
    """Memory of such a GPU, in the form of spec.memory.deviceMemory."""
    fits: bool
    """Whether the engine would run there."""
    strategy: Strategy | None = None
    """Strategy that the planner would choose. This field and the following ones are present only if the
    engine fits."""
    state_dtype: StateDtype | None = None
    """Type of the stored SSM state."""
    slots: Count | None = None
    """Number of state slots."""
    pages: Count | None = None
    """Number of attention KV pages."""
    max_running_requests: Count | None = None
    """Number of sequences of the planned lengths that would fit at once."""
    max_model_len: Count | None = None
    """Maximum length of a sequence in tokens."""
    checkpoints: Count | None = None
    """Number of reusable checkpoints in addition to the planned sequences."""
    resumed: Text | None = None
    """Estimated share of prompt tokens that would be resumed, such as 43%."""
    reason: LongText | None = None
    """Why the engine does not fit, with numbers."""


class TierStatus(StatusModel):
    """One tier of the state cache below the arena."""

    tier: Literal["hostMemory", "disk"]
    """Kind of the tier."""
    bytes: Count
    """Number of bytes that one engine may take there."""
    states: Count
    """Number of states of the planned lengths that these bytes hold, each with its pages."""


class PlanStatus(StatusModel):
    """The planner's choice for one engine."""

    strategy: Strategy
    """Chosen strategy."""
    reason: LongText
    """Why the strategy was chosen, with numbers."""
    state_dtype: StateDtype
    """Chosen type of the stored SSM state."""
    slots: Count
    """Number of state slots."""
    pages: Count
    """Number of attention KV pages."""
    slots_per_sequence: Count
    """Slots that one running sequence takes."""
    max_running_requests: Count
    """Number of sequences of the planned lengths that fit at once. More sequences fit if they are shorter,
    fewer if they are longer."""
    binding_constraint: Text
    """The limit that is reached first: state slots, kv pages, memory, a configured limit, or the default
    limit."""
    headroom: Text
    """Unused part of the budget, such as 3.1Gi."""
    ledger: Annotated[list[LedgerEntry], Field(max_length=64)] = []
    """Use of every byte; the lines add up to the budget."""
    rejected: Annotated[list[RejectedChoice], Field(max_length=32)] = []
    """The other choices, each with the reason against it."""
    receiving: Count | None = None
    """Number of states that a decode engine receives at once. Absent for other engines."""
    exported: Count | None = None
    """Number of states that a prefill engine keeps until decode engines have read them. Absent for other
    engines."""
    raised: LongText | None = None
    """Why spec.memory.arena was raised, with numbers. Absent if the configured size suffices, if any."""
    tiers: Annotated[list[TierStatus], Field(max_length=4)] = []
    """Tiers below the arena, the fastest first."""
    one_size_down: OtherSize | None = None
    """The same engine on a GPU of the next smaller size on the market. Absent without a GPU, with
    spec.memory.arena, or if there is no smaller size."""
    one_size_up: OtherSize | None = None
    """The same engine on a GPU of the next larger size on the market. Absent without a GPU, with
    spec.memory.arena, or if there is no larger size."""


class ScalingChange(StatusModel):
    """One change of the number of engines."""

    time: Timestamp
    """Time of the decision."""
    before: Count
    """Number of engines before the decision."""
    after: Count
    """Number of engines after the decision."""
    reason: LongText
    """Why the number changed, with numbers."""
    record: Annotated[str, Field(max_length=16_384)] = ""
    """All inputs of the decision, for `mambaserve scaling replay`; empty if none were recorded."""


HISTORY = 8
"""Number of decisions that are kept."""


class ScalingStatus(StatusModel):
    """The decisions of the operator's autoscaler. Absent if another component decides."""

    current: Count = 0
    """Number of engine pods that exist."""
    desired: Count
    """Number of engines that should run."""
    reason: LongText = ""
    """Why this number is desired, with numbers."""
    binding: Annotated[str, Field(max_length=64)] = ""
    """Demand that sets the number: prefill, decode, slots, pages, queue, history, idle, wake, bounds, data or
    spec."""
    last_change: Timestamp | None = None
    """Time at which desired last changed."""
    start: Count = 0
    """Value of spec.replicas, or of replicas of the pool, that scaling started from. Another value in the
    spec makes it start from there again."""
    answered_wake: Annotated[str, Field(max_length=64)] | None = None
    """Last wake request of a gateway before the engines stopped. Only a newer request wakes them."""
    history: Annotated[list[ScalingChange], Field(max_length=HISTORY)] = []
    """The last decisions that changed the number, newest last."""


class RolloutStatus(StatusModel):
    """The last ready revision of the engines, and the one that failed.

    A revision is the value of the pods' label serving.mambaserve.io/revision.
    """

    ready_revision: Annotated[str, Field(max_length=63)]
    """The last revision with which all engines were ready. Engines go back to it when a later one fails."""
    failed_revision: Annotated[str, Field(max_length=63)] = ""
    """The revision of the current spec, if it failed and engines went back; empty otherwise."""
    reason: Annotated[str, Field(max_length=64)] = ""
    """Cause of the failure: a reason of the condition Degraded; ErrorRateRose if the new engines failed more
    requests than the older ones that served at the same time; TtftRose or TpotRose if a canary answered more
    slowly; AnswersDiffer if it wrote other texts for copies of requests; CanaryAborted if a person aborted
    it."""
    message: LongText = ""
    """The cause in words, with the message of the pod or the cluster."""


class ProposedStrategy(StatusModel):
    """A strategy that is expected to do better for the measured traffic than the current one."""

    strategy: Strategy
    """Name of the strategy."""
    gain: Text
    """Expected increase in tokens per second, by a byte-count model, such as 23%."""
    since: Timestamp
    """Time since which its advantage is large enough."""
    takes_effect: Timestamp | None = None
    """Time at which running engines receive it, if it still has the advantage. Absent until it has had the
    advantage for long enough."""


class WorkloadStatus(StatusModel):
    """Traffic measured by engines: means of one engine over about the last half hour.

    The numbers are rounded and updated only when they have changed noticeably.
    """

    prompt_tokens: Count
    """Mean prompt length in tokens."""
    output_tokens: Count
    """Mean output length in tokens."""
    shared_prefix_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of prompt tokens that an earlier request also had, whether or not they were kept. Absent with
    eviction LRU or without prefix caching, because engines then do not measure it."""
    concurrency: Count
    """Number of sequences that one engine has at once, including those that wait for it."""
    requests: Count
    """Number of requests in the means; older requests count less."""
    since: Timestamp
    """Time since which there are measurements."""
    time: Timestamp
    """Time at which these numbers were written."""
    proposed: ProposedStrategy | None = None
    """A strategy that does better for this traffic. Absent if the current one is the best, or may not be
    changed."""


class PoolStatus(StatusModel):
    """One pool of engines of a deployment with disaggregation."""

    name: Literal["prefill", "decode"]
    """Name of the pool."""
    replicas: Count = 0
    """Number of engine pods of the pool that exist."""
    ready_replicas: Count = 0
    """Number of engine pods of the pool that answer requests."""
    desired_replicas: Count = 0
    """Number of engines that the pool should have."""
    strategy: Annotated[str, Field(max_length=64)] = ""
    """Chosen strategy of the pool. Auto while each engine chooses for itself at its start."""
    plan: PlanStatus | None = None
    """The planner's choice for one engine of the pool. Absent while the operator does not know the model or
    the memory."""
    rollout: RolloutStatus | None = None
    """The engine revision of the pool to go back to, and the one that failed. Absent until all engines of the
    pool have been ready once."""
    scaling: ScalingStatus | None = None
    """Number of engines of the pool that the operator's autoscaler wants. Absent if replicas of the pool is a
    fixed number."""
    workload: WorkloadStatus | None = None
    """Traffic measured by the engines of the pool. Absent until they have served some hundred requests."""


class Status(StatusModel):
    """The observed state of the deployment and the decisions of the operator."""

    observed_generation: Count = 0
    """metadata.generation that this status was computed from."""
    replicas: Count = 0
    """Number of engine pods that exist."""
    ready_replicas: Count = 0
    """Number of engine pods that answer requests."""
    engines: Annotated[str, Field(max_length=32)] = ""
    """Number of answering engines out of the desired number, such as 1/2."""
    strategy: Annotated[str, Field(max_length=64)] = ""
    """Chosen strategy. Auto while each engine chooses for itself at its start, until an engine reports its
    choice."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the engine pods, for the scale subresource."""
    url: Annotated[str, Field(max_length=1024)] = ""
    """OpenAI base URL inside the cluster."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            json_schema_extra=map_by("type"),
        ),
    ] = []
    """Planned, Available, Progressing, Degraded, UpToDate, Reconciling, Stalled and Ready. Ready sums up the
    others; UpToDate says whether this generation of the spec is running; Reconciling and Stalled repeat
    UpToDate for GitOps tools."""
    plan: PlanStatus | None = None
    """The planner's choice. While the operator does not know the model or the memory, this is the plan that
    an engine reports; absent until one answers."""
    pools: Annotated[
        list[PoolStatus],
        Field(
            max_length=2,
            json_schema_extra=map_by("name"),
        ),
    ] = []
    """The pools of a deployment with disaggregation; each has its own plan, rollout, scaling and workload."""
    hand_over_tokens: Count | None = None
    """Number of uncached prompt tokens from which on a prefill engine computes the prompt:
    spec.disaggregation.handOverTokens, or the planner's choice. Absent without disaggregation."""
    rollout: RolloutStatus | None = None
    """The engine revision to go back to, and the one that failed. Absent until all engines have been ready
    once."""
    canary: CanaryStatus | None = None
    """The canary under way. Absent without one."""
    scaling: ScalingStatus | None = None
    """Number of engines that the operator's autoscaler wants. Absent if another component decides."""
    workload: WorkloadStatus | None = None
    """Traffic measured by the engines. Absent until they have served some hundred requests."""
