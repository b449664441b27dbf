"""The model's view of the arena: where states and attention KV lie. Made by the cache, passed to forward.

All tensors are strided views over one allocation; nothing here owns memory or knows who owns a slot.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheViews:
    """Strided views; slot 0 and page 0 are padding and belong to nobody."""

    conv: list[torch.Tensor]
    """Per recurrent layer [slabs, K-1, C]: inputs of the convolution before activation, oldest first."""
    ssm: list[torch.Tensor]
    """Per recurrent layer: [slabs, H, P, N]."""
    kv: list[torch.Tensor]
    """Per attention layer: [pages, 2 (key, value), page_size, kv_heads, head_dim]."""
