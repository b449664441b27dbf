"""Body of `GET /v1/status` of engine and gateway: the served model and the use of its memory.

It holds numbers and words of the product only: no prompts, no answers, no names that clients chose.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["ready", "loading", "restarting", "draining", "failed", "unreachable"]


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class RequestStatus(_Part):
    """One sequence that an engine has at present."""

    phase: str
    """Phase of the sequence: waiting, prefill or decode."""
    prompt_tokens: int
    """Prompt length in tokens."""
    output_tokens: int
    """Tokens generated so far."""
    cached_tokens: int
    """Prompt tokens that were resumed from a checkpoint."""
    miss_cause: str = ""
    """Why the sequence resumed less than it could have; empty if it did not."""
    preemptions: int = 0
    """Number of times that the sequence was preempted."""


class QuarantineStatus(_Part):
    """One answer that an audit found wrong, and the checkpoint that was withdrawn for it."""

    reason: str
    """Part that differed: `scores`, or a state or window with its recurrent layer."""
    depth: int
    """Tokens of the checkpoint; 0 if the answer itself was computed wrongly."""
    origin: str
    """Where the checkpoint came from: device, tier, peer, hand_over or session."""
    place: str = ""
    """The other engine, or the tier, that the checkpoint came from."""
    step: int | None = None
    """Number of the engine's step that wrote the checkpoint."""
    ancestors: list[int] = Field(default_factory=list)
    """Depths of the checkpoints that the checkpoint was computed from, the deepest first."""
    checkpoints: int = 0
    """Number of checkpoints that were withdrawn together with this one."""
    accepted_drafts: int = 0
    """Tokens of the answer that were drafted."""


class EngineStatus(_Part):
    """One engine. Fields that it does not report are null or empty."""

    name: str
    """Pod name, or host and port."""
    status: Phase
    """`ready`, or one word for why not; a gateway reports `unreachable`."""
    reason: str = ""
    """Explanation of the status in one sentence."""
    stage: str | None = None
    """Part of the model that is being loaded."""
    done: int | None = None
    """Finished units of the stage."""
    total: int | None = None
    """All units of the stage."""
    model: str | None = None
    """The served model."""
    in_flight: int | None = None
    """Requests of the answering gateway that this engine has."""
    running: int | None = None
    """Sequences in the running batch."""
    waiting: int | None = None
    """Requests that wait for admission."""
    slabs: dict[str, int] = Field(default_factory=dict)
    """Slabs of the arena by owner: a state slot is one slab, `pages` stands for all slabs of pages."""
    slots: dict[str, int] = Field(default_factory=dict)
    """State slots by owner."""
    pages: dict[str, int] = Field(default_factory=dict)
    """Attention KV pages by owner."""
    cache_usage: float | None = None
    """Share of the arena that not even eviction could free, 0 to 1."""
    checkpoints: int | None = None
    """Checkpoints in the tree."""
    prompt_tokens: int | None = None
    """Prompt tokens since the engine process started."""
    cached_tokens: int | None = None
    """Prompt tokens resumed from a checkpoint since the engine process started."""
    generated_tokens: int | None = None
    """Tokens generated since the engine process started."""
    first_tokens: int | None = None
    """Sequences whose first token was sent since the engine's server started."""
    first_token_seconds: float | None = None
    """Sum of the times to these first tokens, in seconds."""
    finished: int | None = None
    """Sequences that ended since the engine's server started."""
    failed: int | None = None
    """Sequences that ended with an error."""
    misses: dict[str, int] = Field(default_factory=dict)
    """Number of prompts that resumed less than they could have, by cause."""
    preemptions: int | None = None
    """Number of preempted sequences."""
    restarts: int | None = None
    """Restarts of the engine process."""
    requests: list[RequestStatus] | None = None
    """Running and waiting sequences, at most 64; null if the engine did not answer at once."""
    speculation: str | None = None
    """`on`, or why an engine with speculation has no drafts; null without speculation."""
    quarantined: list[QuarantineStatus] = Field(default_factory=list)
    """Last answers that audits found wrong, the newest first, at most 8."""
    plan: dict[str, Any] | None = None
    """Memory plan in force, in the form of `status.plan`: ledger, rejected choices and more."""


class ModelTraffic(_Part):
    """Requests for one served model at the answering gateway, counted since it started."""

    model: str
    """The served model."""
    requests: int
    """Requests answered."""
    failed: int
    """Requests answered with a status of 500 or above."""
    refused: int
    """Requests answered with status 429."""
    first_bytes: int
    """Answers that began."""
    first_byte_seconds: float
    """Sum of the seconds from the arrival of the request to the first byte."""


class GatewayStatus(_Part):
    """Requests at the answering gateway."""

    in_flight: int
    """Requests that are being relayed."""
    queued: int
    """Requests that wait for a place."""
    held: int
    """Requests that wait for an engine to become ready."""
    traffic: list[ModelTraffic] = Field(default_factory=list)
    """Requests by served model."""


class ServingStatus(_Part):
    """Body of `GET /v1/status`."""

    object: Literal["status"] = "status"
    component: Literal["engine", "gateway"]
    """Component that answers."""
    version: str
    """Installed version of mambaserve."""
    status: Phase
    """Status of the component, as in `/readyz`."""
    reason: str
    """Explanation of the status in one sentence."""
    gateway: GatewayStatus | None = None
    """Requests at the gateway, if a gateway answers."""
    engines: list[EngineStatus]
    """The engine itself, or the engines behind the gateway, by name."""
