"""The neutral description of a model that planner, weights, layers and cache layout read.

Adapters in `mamba_planner.families` build it from a Hugging Face `config.json`. Torch-free.
"""

from dataclasses import dataclass, field
from typing import Literal

LayerKind = Literal[
    "mamba", "attention", "mlp", "moe", "mamba_attention", "gated_delta", "short_conv", "shared_mamba"
]
RECURRENT: tuple[LayerKind, ...] = (
    "mamba", "mamba_attention", "gated_delta", "short_conv", "shared_mamba",
)  # fmt: skip
"""Kinds of layers that have a part of a sequence's state."""


@dataclass(frozen=True, slots=True)
class MambaConfig:
    """Shape of a Mamba2 mixer. The letters in its descriptions are those of the paper (Dao and Gu 2024)."""

    heads: int
    """Number of heads, H."""
    head_dim: int
    """Width of a head, P."""
    state_size: int
    """State size, N."""
    groups: int
    """Number of groups, G."""
    conv_kernel: int
    """Width of the convolution, K."""
    chunk_size: int
    """Chunk size used in training. Our kernels choose their own."""
    conv_bias: bool
    proj_bias: bool
    dt_limit: tuple[float, float]
    """Clamp of dt after softplus."""
    norm_eps: float
    gated_norm: bool = True
    """Whether the gate is combined with a grouped RMSNorm; False = the gate alone."""
    norm_before_gate: bool = False
    """Whether the norm comes before the gate (Falcon-H1)."""
    out_bias: bool = False
    """Whether the output projection has a bias; `proj_bias` is for the input projection."""
    activation: str = "silu"
    """Activation after the convolution."""

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: those of x, of B and of C, in this order."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state_elements(self) -> int:
        """Number of elements of one sequence's recurrent state in one layer, without the convolution."""
        return self.inner * self.state_size


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    """Shape of a gated delta rule mixer (Qwen3-Next, OLMo hybrid)."""

    value_heads: int
    key_heads: int
    value_dim: int
    key_dim: int
    conv_kernel: int
    norm_eps: float
    activation: str = "silu"
    """Activation after the convolution."""
    beta_scale: float = 1.0
    """Factor on beta. With 2, a state's eigenvalues may be negative (OLMo hybrid)."""
    gate_rank: int | None = None
    """Rank of the pairs of matrices that compute decays and gates; each channel of a key then has a decay of
    its own, and the gate is a sigmoid (Kimi-Linear). None = single matrices, and one decay for each head."""

    @property
    def decays(self) -> int:
        """Number of decays of a head."""
        return 1 if self.gate_rank is None else self.key_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_elements(self) -> int:
        """Number of elements of one sequence's recurrent state in one layer, without the convolution."""
        return self.value_heads * self.value_dim * self.key_dim


@dataclass(frozen=True, slots=True)
class ShortConvConfig:
    """Shape of a gated short convolution, whose window is the only state (LFM2)."""

    channels: int
    """Channels of the convolution, C."""
    conv_kernel: int
    bias: bool
    """Whether the convolution and both projections have a bias."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Change of rotary positions for texts longer than those that a model was first trained with."""

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    trained: int
    """Tokens of the texts before the change."""
    factor: float = 1.0
    """Factor by which texts are longer."""
    low: float = 0.0
    high: float = 0.0
    """Numbers of full rotations of a pair in a text of the trained length: pairs with at most `low` rotations
    are slowed down by the factor, and pairs with at least `high` rotations are not (llama3, yarn)."""
    truncate: bool = True
    """Whether the borders between those pairs are rounded to whole pairs (yarn)."""
    attention_factor: float = 1.0
    """Factor on cosines and sines."""
    divisors: tuple[float, ...] = ()
    """Divisor of each pair's frequency up to the trained length (longrope)."""

    @property
    def limit(self) -> int | None:
        """Length beyond which the angles of all earlier tokens would change; None = there is no such length.

        Cached keys would be wrong from there on.
        """
        return self.trained if self.kind in ("dynamic", "longrope") else None


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention: keys and values that every head computes from one row of a token (Kimi-Linear).

    Pages hold the row alone. Heads attend to the row itself: the matrices that would compute keys and values
    from it are multiplied into the queries and the results instead.
    """

    rank: int
    """Width of the part that keys and values come from, behind its norm."""
    own: int
    """Width of the part of a key that each head computes for itself."""
    shared: int
    """Width of the part of a key that all heads have in common."""
    values: int
    """Width of a head's value."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool
    scale: float
    rope_theta: float | None = None
    """Base of the rotary embedding; None = no positional embedding (Nemotron-H, Granite hybrid)."""
    rope_scaling: RopeScaling | None = None
    rotary_fraction: float = 1.0
    """Share of `head_dim` that is rotated (Bamba 0.5, Qwen3-Next 0.25)."""
    output_gate: bool = False
    """Whether the query projection carries a sigmoid gate of the same width (Qwen3-Next)."""
    qk_norm: bool = False
    """Whether queries and keys have an RMSNorm over `head_dim` (Qwen3-Next)."""
    joint_norm: bool = False
    """Whether that norm is over all heads together instead of over each of them (OLMo hybrid)."""
    latent: LatentConfig | None = None
    """Shape of latent attention, whose pages hold one row of `head_dim` for keys and values alike."""

    @property
    def parts(self) -> int:
        """Number of rows that pages hold of a token and a head: a key and a value, or one for both."""
        return 2 if self.latent is None else 1

    @property
    def rotated(self) -> int:
        """Number of elements of a head that are rotated."""
        return 0 if self.rope_theta is None else int(self.head_dim * self.rotary_fraction)


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """Transformer blocks that layers share: attention and feed-forward before some mixers (Zamba2)."""

    blocks: int
    """Number of different blocks, which the layers use in turn."""
    adapter_rank: int
    """Rank of the changes that each use makes to the feed-forward's first projection."""
    attention_adapters: bool = False
    """Whether each use also changes the projections of queries, keys and values."""


@dataclass(frozen=True, slots=True)
class MlpConfig:
    intermediate: int
    activation: str
    """Activation by its Hugging Face name: relu2, silu, …"""
    gated: bool
    bias: bool


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Sparse feed-forward: routed experts and, if `shared_intermediate` > 0, one that always runs."""

    experts: int
    experts_per_token: int
    intermediate: int
    shared_intermediate: int
    activation: str
    gated: bool
    bias: bool
    scoring: Literal["softmax", "sigmoid", "softmax_topk"]
    """Conversion of router logits to weights: softmax over all experts, sigmoid with a correction bias, or
    softmax over the chosen experts."""
    normalize: bool = True
    """Whether the weights of the chosen experts are scaled to sum to 1."""
    scale: float = 1.0
    """Factor on the routed output."""
    groups: int = 1
    groups_per_token: int = 1
    latent: int | None = None
    """Width that the routed experts work in, between two projections (Nemotron 3 Super); None =
    `hidden_size`."""
    correction: bool = True
    """Whether sigmoid scores have a correction bias, if the family has one (not in every LFM2)."""
    shared_gate: bool = False
    """Whether a sigmoid of the input weights the shared expert's output (Qwen3-Next)."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constant factors of muP-style models (Granite, Falcon-H1); 1 everywhere else."""

    embedding: float = 1.0
    logits: float = 1.0
    """Factor on the logits. Granite divides by `logits_scaling`; this factor is its inverse."""
    residual: float = 1.0
    """Factor on a block's output before it joins the residual stream."""
    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    ssm_in: float = 1.0
    ssm_out: float = 1.0
    ssm: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Factors on z, x, B, C, dt after the input projection."""
    mlp_gate: float = 1.0
    mlp_down: float = 1.0


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Elements of quantized matrices by the forms in which engines on CPUs and on GPUs hold them."""

    summary: str
    """How the checkpoint stores them, in words."""
    int8: int = 0
    int4: int = 0
    int4_zeros: int = 0
    """Elements that the C++ kernels hold in each of these three forms, as in `WeightsSize`."""
    plain: int = 0
    """Elements that no kernel multiplies in few bits: they are held as the type of the weights."""
    packed: int = 0
    """Elements of matrices that stay in four bits on GPUs."""
    packed_bytes: int = 0
    """Bytes that the matrices of `packed` take on a GPU."""

    def held(self, *, on_cpu: bool, dtype: str) -> str:
        """Return how an engine holds the weights without further quantization, in words."""
        few = self.int8 + self.int4 + self.int4_zeros
        plain = self.plain
        if not on_cpu:
            few, plain = self.packed, few + plain - self.packed
        if (on_cpu and dtype == "float16") or not few:
            return f"the checkpoint stores {self.summary}, held as {dtype}"
        rest = f", {plain / 1e9:.3g}B weights of them as {dtype}" if plain else ""
        return f"the checkpoint stores {self.summary}, held in as few bits{rest}"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model, whatever names its configuration gives to the parts.

    `layers` lists the residual blocks in execution order, each with one norm, before or after its mixer. A
    decoder layer "mixer, then feed-forward" is therefore two blocks; Falcon-H1's parallel mixers are one
    `mamba_attention`; a `moe` block includes its shared expert; a `shared_mamba` block of Zamba2 is a mixer
    with the shared transformer block before it.
    """

    family: str
    """Name of the family, one of `FAMILIES_SERVED` of the registry."""
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
    """Type of the checkpoint: float32, bfloat16 or float16."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    parameters: int
    """Number of parameters by arithmetic. The true size of the weights takes precedence where it is known."""
    moe: MoeConfig | None = None
    short_conv: ShortConvConfig | None = None
    shared: SharedConfig | None = None
    """Transformer blocks of the `shared_mamba` layers, which have `attention` and `mlp`."""
    multipliers: Multipliers = field(default_factory=Multipliers)
    checkpoint_layers: tuple[int, ...] = ()
    """Checkpoint layer of each entry of `layers` (same length); empty = one to one."""
    norm_after: tuple[int, ...] = ()
    """Places in `layers` of the blocks whose norm is applied to the mixer's result instead of its input."""
    state_dtype_hint: str | None = None
    """Type the checkpoint requires for its SSM state, if it names one (`mamba_ssm_cache_dtype`, Qwen3.5
    `mamba_ssm_dtype`)."""
    quantized: str | None = None
    """Name of a way of quantizing weights that cannot be read; None = all of them can be."""
    stored: StoredWeights | None = None
    """Quantized matrices of the checkpoint by its configuration; None = plain numbers, or FP8 with scales."""
    has_head: bool = False
    """Whether the configuration names a head for drafts in the checkpoint (`num_nextn_predict_layers`,
    `mtp_num_hidden_layers`)."""
    draft_head: bool = False
    """Whether the engine drafts with the checkpoint's own head, which has a layer of its own in pages."""
    draft_model: "DraftModel | None" = None
    """Second model that drafts for this one; None = there is none."""

    @property
    def position_limit(self) -> int | None:
        """Maximum length that can be served at all; None = `max_position` is a recommendation."""
        scaling = None if self.attention is None else self.attention.rope_scaling
        return None if scaling is None else scaling.limit

    @property
    def recurrent_layers(self) -> int:
        return sum(kind in RECURRENT for kind in self.layers)

    @property
    def attention_layers(self) -> int:
        return sum(kind in ("attention", "mamba_attention", "shared_mamba") for kind in self.layers)

    @property
    def kv_layers(self) -> int:
        """Number of layers whose keys and values are in pages, including the layer of a head for drafts."""
        return self.attention_layers + self.draft_head


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A second model that drafts for an engine, as the planner counts it."""

    uri: str
    config: ModelConfig
    weights_bytes: int | None
    """True bytes of the draft model's weights in memory; None = by the number of parameters."""
