"""What `GET /v1/status` of engine and gateway answers: what is served, and what its memory is used for.

Numbers and words of the product alone: no prompts, no answers, no names that clients chose.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["ready", "loading", "restarting", "draining", "failed", "unreachable"]


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class RequestStatus(_Part):
    """One sequence that an engine has now."""

    phase: str
    """waiting, prefill or decode."""
    prompt_tokens: int
    """Length of its prompt."""
    output_tokens: int
    """Tokens that it got so far."""
    cached_tokens: int
    """Prompt tokens that were resumed from a checkpoint."""
    miss_cause: str = ""
    """Why it resumed less than it could have; empty if it did not."""
    preemptions: int = 0
    """How often it was preempted."""


class EngineStatus(_Part):
    """One engine. What it does not say, or cannot be asked, is null or empty."""

    name: str
    """Pod name, or host and port."""
    status: Phase
    """`ready`, or why not in one word; `unreachable` is the gateway's word."""
    reason: str = ""
    """The same in a sentence."""
    stage: str | None = None
    """What is being loaded."""
    done: int | None = None
    """Units of the stage that are done."""
    total: int | None = None
    """Units of the stage."""
    model: str | None = None
    """The served model."""
    in_flight: int | None = None
    """Requests of the asked gateway that it has."""
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
    """How many of them were resumed from a checkpoint."""
    generated_tokens: int | None = None
    """Tokens generated since the engine process started."""
    misses: dict[str, int] = Field(default_factory=dict)
    """Prompts that resumed less than they could have, by cause."""
    preemptions: int | None = None
    """Sequences preempted."""
    restarts: int | None = None
    """Restarts of the engine process."""
    requests: list[RequestStatus] | None = None
    """What runs and waits, at most 64; null where the engine did not answer at once."""
    plan: dict[str, Any] | None = None
    """The memory plan in force, as in `status.plan`: ledger, rejected choices and more."""


class GatewayStatus(_Part):
    """Requests at the asked gateway."""

    in_flight: int
    """Being relayed."""
    queued: int
    """Waiting for a place."""
    held: int
    """Waiting for an engine to become ready."""


class ServingStatus(_Part):
    """Body of `GET /v1/status`."""

    object: Literal["status"] = "status"
    component: Literal["engine", "gateway"]
    """Who answers."""
    version: str
    """The installed version of mambaserve."""
    status: Phase
    """Of who answers, as `/readyz` says it."""
    reason: str
    """The same in a sentence."""
    gateway: GatewayStatus | None = None
    """Of a gateway."""
    engines: list[EngineStatus]
    """The engine itself, or those behind the gateway, by name."""
