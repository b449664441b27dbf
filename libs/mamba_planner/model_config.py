"""The neutral description of a model that everything else reads: planner, weights, layers, cache layout.

Adapters in `mamba_planner.families` turn a Hugging Face `config.json` into it. Torch-free.
"""

from dataclasses import dataclass, field
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
    norm_before_gate: bool = False
    """Norm first, then the gate (Falcon-H1)."""
    out_bias: bool = False
    """Bias of the output projection; `proj_bias` is that of the input projection."""
    activation: str = "silu"
    """Behind the convolution."""

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """C: channels of the convolution, x | B | C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state_elements(self) -> int:
        """Of the recurrent part of a state."""
        return self.inner * self.state_size


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    """Shape of a gated delta rule mixer (Qwen3-Next)."""

    value_heads: int
    key_heads: int
    value_dim: int
    key_dim: int
    conv_kernel: int
    norm_eps: float
    activation: str = "silu"
    """Behind the convolution."""

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_elements(self) -> int:
        """Of the recurrent part of a state."""
        return self.value_heads * self.value_dim * self.key_dim


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool
    scale: float
    rope_theta: float | None = None
    """None = no positional embedding (Nemotron-H, Granite hybrid)."""
    rotary_fraction: float = 1.0
    """Share of `head_dim` that is rotated (Bamba 0.5, Qwen3-Next 0.25)."""
    output_gate: bool = False
    """The query projection carries a sigmoid gate of the same width (Qwen3-Next)."""
    qk_norm: bool = False
    """RMSNorm over `head_dim` of queries and keys (Qwen3-Next)."""

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated."""
        return 0 if self.rope_theta is None else int(self.head_dim * self.rotary_fraction)


@dataclass(frozen=True, slots=True)
class MlpConfig:
    intermediate: int
    activation: str
    """As in Hugging Face: relu2, silu, …"""
    gated: bool
    bias: bool


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Sparse feed-forward: routed experts and, when `shared_intermediate` > 0, one that always runs."""

    experts: int
    experts_per_token: int
    intermediate: int
    shared_intermediate: int
    activation: str
    gated: bool
    bias: bool
    scoring: Literal["softmax", "sigmoid", "softmax_topk"]
    """How router logits become weights: softmax over all, sigmoid with a correction bias, softmax over the
    chosen ones."""
    normalize: bool = True
    """Weights of the chosen experts are scaled to sum to 1."""
    scale: float = 1.0
    """Factor on the routed output."""
    groups: int = 1
    groups_per_token: int = 1
    latent: int | None = None
    """Width the experts work in; None = `hidden_size`."""
    shared_gate: bool = False
    """The shared expert's output is weighted by a sigmoid of the input (Qwen3-Next)."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constant factors of muP-style models (Granite, Falcon-H1); 1 everywhere else."""

    embedding: float = 1.0
    logits: float = 1.0
    """Factor on the logits (Granite divides by `logits_scaling`: here already inverted)."""
    residual: float = 1.0
    """Factor on a block's output before it joins the residual stream."""
    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    ssm_in: float = 1.0
    ssm_out: float = 1.0
    ssm: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """On z, x, B, C, dt after the input projection."""
    mlp_gate: float = 1.0
    mlp_down: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. `layers` lists the residual blocks in execution order, each with one pre-norm.

    A decoder layer "mixer, then feed-forward" is therefore two blocks; Falcon-H1's parallel mixers are one
    `mamba_attention`; a `moe` block includes its shared expert.
    """

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
    moe: MoeConfig | None = None
    multipliers: Multipliers = field(default_factory=Multipliers)
    checkpoint_layers: tuple[int, ...] = ()
    """Which checkpoint layer each entry of `layers` belongs to (same length); empty = one to one."""
    state_dtype_hint: str | None = None
    """Type the checkpoint asks for its SSM state, if it says so (`mamba_ssm_cache_dtype`)."""
    quantized: str | None = None
    """Method that the files' weights are quantized by; None = they are numbers, or FP8 with scales."""

    @property
    def recurrent_layers(self) -> int:
        return sum(kind in ("mamba", "mamba_attention", "gated_delta") for kind in self.layers)

    @property
    def attention_layers(self) -> int:
        return sum(kind in ("attention", "mamba_attention") for kind in self.layers)
