"""Memory of a second model that drafts: its weights, states, pages and tables, to the byte. Pure.

`MemoryBudget` counts it, and the engine allocates exactly this. A sequence that drafts has a lane: two states
(one after its known tokens, and one that follows the drafts), and pages from a pool that all lanes share.
"""

from dataclasses import dataclass
from typing import Literal

from mamba_planner.arithmetic import DTYPE_BYTES, page_bytes, state_bytes, weights_bytes
from mamba_planner.constraints import Constraints
from mamba_planner.errors import UnusableInput
from mamba_planner.model_config import DraftModel, ModelConfig
from mamba_planner.workspace import CHUNK, DRAFT_ROWS, workspace_bytes

CONTEXT_TOKENS = 4096
"""Tokens for which each sequence that drafts has pages. Such sequences share them, so one text may be longer
where others are shorter."""
CATCH_UP_CHUNKS = 8
"""Chunks of tokens that a draft model reads at most between two steps, so that a long prompt delays no other
answer by more."""
STATES_PER_LANE = 2
STATE_DTYPE = "float32"
"""Type of a draft model's states: rounded ones would save little of so few."""


@dataclass(frozen=True, slots=True)
class DraftModelMemory:
    """How much memory one draft model of an engine takes."""

    dtype: str
    """Type of weights, windows, keys and values."""
    weights: int
    """Bytes of the weights."""
    lanes: int
    """Sequences that can draft at once."""
    states: int
    """Number of states. One of them belongs to no sequence: padding uses it."""
    state_bytes: int
    """Bytes of one state."""
    longest: int
    """Most tokens of a text that the draft model reads."""
    table_width: int
    """Most pages of a sequence; at least 1, also without attention."""
    pages: int
    """Number of pages. One of them belongs to no sequence: padding uses it. 0 without attention."""
    page_bytes: int
    """Bytes of one page."""
    catch_up_tokens: int
    """Most tokens that the draft model reads between two steps of the engine."""

    @property
    def bytes(self) -> int:
        """Bytes of weights, states, pages, the table of pages, and the last tokens."""
        tables = (self.lanes + 1) * (self.table_width + 1) * DTYPE_BYTES["float32"]
        return self.weights + self.states * self.state_bytes + self.pages * self.page_bytes + tables


def draft_model_of(model: ModelConfig, uri: str | None) -> DraftModel | None:
    """Return the draft model of `model` for settings that name it by `uri`; None if `uri` is None.

    Raises `UnusableInput` if the settings name a draft model whose configuration is not known.
    """
    if uri is None:
        return None
    if model.draft_model is None:
        raise UnusableInput(
            f"speculation draft={uri}: the memory cannot be planned, as the configuration of the draft model "
            "is not known here"
        )
    return model.draft_model


def draft_model_memory(
    model: ModelConfig,
    draft: DraftModel,
    constraints: Constraints,
    device: Literal["cpu", "cuda"],
    running: int,
) -> DraftModelMemory:
    """Return the sizes of `draft`, the draft model of an engine that serves `model`.

    `constraints` are the settings of the engine, and `running` is the maximum number of its sequences.
    """
    config = draft.config
    dtype, page_size = constraints.dtype or config.dtype, constraints.page_size
    lanes = min(running, DRAFT_ROWS)
    longest = min(
        constraints.max_model_len or model.max_position, config.position_limit or config.max_position
    )
    width = -(-longest // page_size)
    page = page_bytes(config, dtype, page_size)
    pages = min(lanes * width, lanes * -(-CONTEXT_TOKENS // page_size)) + 1 if page else 0
    weights = draft.weights_bytes
    if weights is None:
        weights = weights_bytes(config, dtype, 1, constraints.quantization, on_cpu=device == "cpu")
    return DraftModelMemory(
        dtype=dtype,
        weights=weights,
        lanes=lanes,
        states=STATES_PER_LANE * lanes + 1 if config.recurrent_layers else 0,
        state_bytes=state_bytes(config, STATE_DTYPE, dtype).total,
        longest=longest,
        table_width=min(width, pages - 1) if pages else 1,
        pages=pages,
        page_bytes=page,
        catch_up_tokens=max(CATCH_UP_CHUNKS * CHUNK[device], lanes * (constraints.draft_tokens + 1)),
    )


def draft_workspace(draft: DraftModel, memory: DraftModelMemory, device: Literal["cpu", "cuda"]) -> int:
    """Return the bytes of the largest step of a draft model, which runs between two steps of the engine."""
    return workspace_bytes(
        draft.config,
        memory.dtype,
        tokens=memory.catch_up_tokens,
        running=memory.lanes,
        longest=memory.longest,
        chunk=CHUNK[device],
    )
