"""The model's views of the arena: states and attention KV of each layer. `DeviceArena` creates them.

All tensors are strided views of one allocation; the views own no memory and do not know which sequence owns a
slot.
"""

from dataclasses import dataclass, field

import torch

from mamba_kernels.fp8_pages import Pages
from mamba_server.model.hidden_rows import HiddenMemory
from mamba_server.model.replay import ReplayMemory


@dataclass(frozen=True, slots=True)
class CacheViews:
    """Views of the arena in which layers find the state of each slot, and the keys and values of each page.

    Slot 0 and page 0 are padding and belong to no sequence.
    """

    conv: list[torch.Tensor]
    """[slabs, K-1, C] per recurrent layer: inputs of the convolution before activation, oldest first."""
    ssm: list[torch.Tensor]
    """[slabs, H, P, N] per recurrent layer: states, without elements if the window is the whole state."""
    kv: list[Pages]
    """[pages, 2 (key, value), page_size, kv_heads, head_dim] per attention layer. The last one belongs to a
    head for drafts, if there is one."""
    replay: ReplayMemory | None = None
    """Memory for drafts, outside the arena; None = there are no drafts."""
    rings: list[torch.Tensor] = field(default_factory=list)
    """[lanes, inputs, width] per recurrent layer, outside the arena: raw inputs that states lack; empty = all
    steps write all states."""
    tails: torch.Tensor | None = None
    """[pages, d]: hidden state of the last token of each page; None = no head drafts."""
    hidden: HiddenMemory | None = None
    """Hidden states of last tokens, outside the arena; None = no head drafts."""
