"""The neutral description of a model that everything else reads: planner, weights, layers, cache layout.

Adapters in `mamba_server.model.families` turn a Hugging Face `config.json` into it. Torch-free.
"""

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["mamba", "attention", "mlp", "moe", "mamba_attention", "gated_delta"]


@dataclass(frozen=True, slots=True)
class MambaConfig:
    """Shape of a Mamba2 mixer, in the letters of the paper."""

    heads: int
    """H"""
    head_dim: int
    """P"""
    state_size: int
    """N"""
    groups: int
    """G"""
    conv_kernel: int
    """K"""
    chunk_size: int
    """A training artefact: the chunk of our kernels is ours to choose."""
    conv_bias: bool
    proj_bias: bool
    dt_limit: tuple[float, float]
    """Clamp of dt after softplus."""
    norm_eps: float
    gated_norm: bool = True
    """Grouped RMSNorm with the gate before the norm; False = gate alone."""

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """C: channels of the convolution, x | B | C."""
        return self.inner + 2 * self.groups * self.state_size


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    """Shape of a gated delta rule mixer (Qwen3-Next)."""

    value_heads: int
    key_heads: int
    value_dim: int
    key_dim: int
    conv_kernel: int
    norm_eps: float

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool
    scale: float
    rope_theta: float | None = None
    """None = no positional embedding (Nemotron-H, Granite hybrid)."""


@dataclass(frozen=True, slots=True)
class MlpConfig:
    intermediate: int
    activation: str
    """As in Hugging Face: relu2, silu, …"""
    gated: bool
    bias: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. `layers` is in execution order; a Falcon-H1 layer is one `mamba_attention`."""

    family: str
    """nemotron_h, bamba, granitemoehybrid, falcon_h1, mamba2, qwen3_next"""
    architecture: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerKind, ...]
    mamba: MambaConfig | None
    gated_delta: GatedDeltaConfig | None
    attention: AttentionConfig | None
    mlp: MlpConfig | None
    norm_eps: float
    tie_embeddings: bool
    residual_in_fp32: bool
    max_position: int
    dtype: str
    """float32, bfloat16 or float16, as the checkpoint says."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    parameters: int
    """Number of parameters, by arithmetic; the weights' true bytes win when they are known."""

    @property
    def recurrent_layers(self) -> int:
        return sum(kind in ("mamba", "mamba_attention", "gated_delta") for kind in self.layers)

    @property
    def attention_layers(self) -> int:
        return sum(kind in ("attention", "mamba_attention") for kind in self.layers)
