"""`EngineProfile`: speed and memory of a simulated engine, the parameters of the cost model.

A step takes `step_seconds`, `sequence_seconds` for each sequence that decodes and `context_seconds` for each
token of their contexts. A prompt adds its work, as `prefill_work` counts it, divided by
`prefill_tokens_per_second`, and `resume_seconds` if it resumes from a checkpoint.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from mamba_api.choices import Strategy
from mamba_server.cache.arena import Arena

CAP = 4
"""Default maximum of checkpoints on a path."""
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speed and memory of one kind of engine."""

    name: str
    origin: str
    """Where the numbers are from: `fitted` to measurements, or `assumed` with the assumption."""
    prefill_tokens_per_second: Positive
    attention_ratio: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """Work that attention adds to a token for each token before it, in tokens."""
    step_seconds: Positive
    sequence_seconds: Annotated[float, msgspec.Meta(ge=0.0)]
    resume_seconds: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """Seconds that a prompt takes in addition to its work if it resumes from a checkpoint."""
    context_seconds: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    chunk_tokens: Count = 512
    """Largest number of prompt tokens in a step."""
    max_running: Count
    slabs: Count
    """Size of the arena, all memory counted in state slots."""
    tokens_per_state: Annotated[int, msgspec.Meta(ge=0)]
    """Tokens whose attention KV takes the bytes of one state; 0 = the model has no attention."""
    state_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of a state that travels between engines; 0 = not known, so that states take no time to travel."""
    page_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of a page of attention KV; 0 = as many as a block of the trace, or fewer if states are small."""
    track_interval: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens between the checkpoints of a prompt; 0 = as many as a block of the trace."""
    strategy: Strategy = "ExtraBuffer"
    overlap: bool = False
    """Whether step n+1 is scheduled while step n runs, on which the memory of a sequence depends."""
    fit_error: float | None = None
    """Mean absolute error of the fit, relative; None where nothing was fitted."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of an arena that holds `slots` states and `kv_tokens` tokens of attention KV.

    `tokens_per_state` is the number of tokens whose KV takes the bytes of one state. It is 0 for a model
    without attention, whose memory is limited by slots only.
    """

    slots: int
    kv_tokens: int = 0
    tokens_per_state: int = 0

    def arena(self, page_size: int, kind: type[Arena] = Arena) -> Arena:
        """Return an arena of this size, whose slab 0 is padding."""
        per_slab = self.tokens_per_state // page_size
        slabs = self.slots + (-(-self.kv_tokens // (per_slab * page_size)) if per_slab else 0)
        return kind(slabs + 1, per_slab)
