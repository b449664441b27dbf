"""Names of the tensors of a checkpoint by family, as transformers writes them. Read while a model is built.

The names do not have the prefix that `Weights` removes.
"""

from dataclasses import dataclass, replace

from mamba_planner.model_config import LayerKind
from mamba_server.model.checkpoint.weight_files import DRAFT_HEADS


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of the tensors of a residual block, without the prefix of the layer."""

    norm: str
    """Name of the weight of the norm before the mixer."""
    mixer: str
    """Prefix of all other tensors of the block; "" = they have no common prefix."""
    other_norm: str = ""
    """Another name of the same weight, which some checkpoints of the family have; "" = there is none."""
    other_mixers: tuple[str, ...] = ()
    """Other prefixes of these tensors, which some checkpoints or adapters of the family have."""
    norms_after: tuple[str, ...] = ()
    """Names of the weight in blocks whose norm is after the mixer; checkpoints have one of them."""

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of the weight of the norm before the mixer; checkpoints have one of them."""
        return (self.norm, self.other_norm) if self.other_norm else (self.norm,)


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Names of the tensors of attention that differ among families, without its prefix."""

    output: str = "o_proj"
    query_norm: str = "q_norm.weight"
    key_norm: str = "k_norm.weight"


USUAL_ATTENTION = AttentionNames()


@dataclass(frozen=True, slots=True)
class DeltaNames:
    """Names of the tensors of a mixer of the gated delta rule, without its prefix."""

    inputs: tuple[str, ...] = ()
    """Names of the input projections that give q | k | v (one projection or three), z, b and a; empty = there
    are two projections, whose rows are grouped by key head."""
    output: str = "out_proj"
    norm: str = "norm.weight"


@dataclass(frozen=True, slots=True)
class MoeNames:
    """Names of the tensors of a sparse feed-forward (mixture of experts), without the prefix of the layer."""

    router: str
    correction: str
    """Name of the bias that is added to scores only to choose experts; "" = there is none."""
    gate_up: tuple[str, ...]
    """Names of the first projection of the experts, in one part or two: tensors of all experts, or of each if
    the names contain "{expert}", which stands for its number."""
    down: str
    """Name of the last projection of the experts, of all or of each like `gate_up`."""
    shared_gate_up: tuple[str, ...]
    shared_down: str
    shared_gate: str = ""
    """Name of the weight of the shared expert's gate; "" = the shared expert has the weight 1."""
    latent: tuple[str, str] = ("", "")
    """Names of the projections to the width of the experts and back; "" = experts work in the width of the
    model."""
    stacked: tuple[str, str] | None = None
    """Names of the first and the last projection in checkpoints with one tensor for all experts; None = the
    family has no such checkpoints besides those that `gate_up` and `down` name."""


@dataclass(frozen=True, slots=True)
class ParallelNames:
    """Prefixes of the tensors of two mixers that share a block, without the prefix of the layer."""

    mamba: str
    attention: str


@dataclass(frozen=True, slots=True)
class SharedNames:
    """Names of the tensors of transformer blocks that layers share, without the prefix of a layer."""

    block: str = "shared_transformer"
    """Prefix of the tensors that lie in the first layer of a block, whichever layers use it."""
    linear: str = "linear"
    """Name of the projection of the block's result, which each layer has for itself."""
    norm: str = "input_layernorm.weight"
    attention: str = "self_attn"
    norm_between: str = "pre_ff_layernorm.weight"
    gate_up: str = "feed_forward.gate_up_proj"
    down: str = "feed_forward.down_proj"
    gate_up_changes: str = "feed_forward.gate_up_proj_adapter_list"
    """Prefix of the low-rank changes of all uses, followed by the number of a use among all of the model."""
    attention_changes: tuple[str, ...] = tuple(f"self_attn.linear_{part}_adapter_list" for part in "qkv")


@dataclass(frozen=True, slots=True)
class HeadNames:
    """Names of the tensors of a head for drafts, without its prefix; its blocks have the family's names."""

    join: str
    """Name of the projection of a token's embedding and the hidden state before it, in this order."""
    embedding_norm: str
    hidden_norm: str
    norm: str
    """Name of the weight of the norm after the last block."""
    feed_forward: int
    """Number of the layer with the feed-forward; attention is in layer 0."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of the tensors of one family."""

    embedding: str
    norm: str
    """Name of the weight of the norm after the last block."""
    blocks: dict[LayerKind, BlockNames]
    gate_proj: str = "gate_proj"
    up_proj: str = "up_proj"
    gate_up_proj: str = ""
    """Name of the feed-forward's gate and up projection if they are one matrix; "" = two matrices."""
    down_proj: str = "down_proj"
    moe: MoeNames | None = None
    parallel: ParallelNames | None = None
    shared: SharedNames | None = None
    attention: AttentionNames = USUAL_ATTENTION
    delta: DeltaNames = DeltaNames()
    norm_offset: float = 0.0
    """Offset that is added to the weights of norms, except those after a mixer's gate."""
    unused: tuple[str, ...] = ()
    """Prefixes of tensors that are not used: heads that predict several tokens, unless they draft."""
    head: HeadNames | None = None
    """Names of a head for drafts; None = the family has none."""


_ONE_MIXER = BlockNames("norm.weight", "mixer")
_QWEN = TensorNames(
    embedding="embed_tokens.weight",
    norm="norm.weight",
    blocks={
        "gated_delta": BlockNames("input_layernorm.weight", "linear_attn"),
        "attention": BlockNames("input_layernorm.weight", "self_attn"),
        "mlp": BlockNames("post_attention_layernorm.weight", "mlp"),
        "moe": BlockNames("post_attention_layernorm.weight", "mlp"),
    },
    moe=MoeNames(
        router="mlp.gate.weight",
        correction="",
        gate_up=("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"),
        down="mlp.experts.{expert}.down_proj.weight",
        shared_gate_up=("mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"),
        shared_down="mlp.shared_expert.down_proj.weight",
        shared_gate="mlp.shared_expert_gate.weight",
        stacked=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ),
    norm_offset=1.0,
    unused=(DRAFT_HEADS,),
    head=HeadNames(
        join="fc",
        embedding_norm="pre_fc_norm_embedding.weight",
        hidden_norm="pre_fc_norm_hidden.weight",
        norm="norm.weight",
        feed_forward=0,
    ),
)

NAMES: dict[str, TensorNames] = {
    "bamba": TensorNames(
        embedding="embed_tokens.weight",
        norm="final_layernorm.weight",
        blocks={
            "mamba": BlockNames("input_layernorm.weight", "mamba"),
            "attention": BlockNames("input_layernorm.weight", "self_attn"),
            "mlp": BlockNames("pre_ff_layernorm.weight", "feed_forward"),
        },
    ),
    "mamba2": TensorNames(embedding="embeddings.weight", norm="norm_f.weight", blocks={"mamba": _ONE_MIXER}),
    "nemotron_h": TensorNames(
        embedding="embeddings.weight",
        norm="norm_f.weight",
        blocks={"mamba": _ONE_MIXER, "attention": _ONE_MIXER, "mlp": _ONE_MIXER, "moe": _ONE_MIXER},
        unused=(DRAFT_HEADS,),
        head=HeadNames(
            join="layers.0.eh_proj",
            embedding_norm="layers.0.enorm.weight",
            hidden_norm="layers.0.hnorm.weight",
            norm="layers.1.final_layernorm.weight",
            feed_forward=1,
        ),
        moe=MoeNames(
            router="mixer.gate.weight",
            correction="mixer.gate.e_score_correction_bias",
            gate_up=("mixer.experts.{expert}.up_proj.weight",),
            down="mixer.experts.{expert}.down_proj.weight",
            shared_gate_up=("mixer.shared_experts.up_proj.weight",),
            shared_down="mixer.shared_experts.down_proj.weight",
            latent=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
        ),
    ),
    "falcon_h1": TensorNames(
        embedding="embed_tokens.weight",
        norm="final_layernorm.weight",
        blocks={
            "mamba_attention": BlockNames("input_layernorm.weight", ""),
            "mlp": BlockNames("pre_ff_layernorm.weight", "feed_forward"),
        },
        parallel=ParallelNames(mamba="mamba", attention="self_attn"),
    ),
    "granitemoehybrid": TensorNames(
        embedding="embed_tokens.weight",
        norm="norm.weight",
        blocks={
            "mamba": BlockNames("input_layernorm.weight", "mamba"),
            "attention": BlockNames("input_layernorm.weight", "self_attn"),
            "mlp": BlockNames("post_attention_layernorm.weight", "shared_mlp"),
            "moe": BlockNames("post_attention_layernorm.weight", "block_sparse_moe"),
        },
        moe=MoeNames(
            router="block_sparse_moe.router.layer.weight",
            correction="",
            gate_up=("block_sparse_moe.input_linear.weight",),
            down="block_sparse_moe.output_linear.weight",
            shared_gate_up=("shared_mlp.input_linear.weight",),
            shared_down="shared_mlp.output_linear.weight",
        ),
        gate_up_proj="input_linear",
        down_proj="output_linear",
    ),
    "kimi_linear": TensorNames(
        embedding="embed_tokens.weight",
        norm="norm.weight",
        blocks={
            # The classes of transformers, and so adapters, name some modules otherwise than files do.
            "gated_delta": BlockNames(
                "input_layernorm.weight", "self_attn", other_mixers=("self_attn.forget_gate",)
            ),
            "attention": BlockNames("input_layernorm.weight", "self_attn"),
            # Transformers writes a dense feed-forward under the name of the sparse ones.
            "mlp": BlockNames("post_attention_layernorm.weight", "mlp", other_mixers=("block_sparse_moe",)),
            "moe": BlockNames("post_attention_layernorm.weight", "block_sparse_moe", other_mixers=("mlp",)),
        },
        moe=MoeNames(
            router="block_sparse_moe.gate.weight",
            correction="block_sparse_moe.gate.e_score_correction_bias",
            gate_up=(
                "block_sparse_moe.experts.{expert}.w1.weight",
                "block_sparse_moe.experts.{expert}.w3.weight",
            ),
            down="block_sparse_moe.experts.{expert}.w2.weight",
            shared_gate_up=(
                "block_sparse_moe.shared_experts.gate_proj.weight",
                "block_sparse_moe.shared_experts.up_proj.weight",
            ),
            shared_down="block_sparse_moe.shared_experts.down_proj.weight",
        ),
        delta=DeltaNames(output="o_proj", norm="o_norm.weight"),
    ),
    "qwen3_next": _QWEN,
    "qwen3_5": replace(
        _QWEN, delta=DeltaNames(inputs=("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"))
    ),
    "zamba2": TensorNames(
        embedding="embed_tokens.weight",
        norm="final_layernorm.weight",
        blocks={
            "mamba": BlockNames("input_layernorm.weight", "mamba"),
            "shared_mamba": BlockNames("mamba_decoder.input_layernorm.weight", "mamba_decoder.mamba"),
        },
        shared=SharedNames(),
    ),
    "lfm2": TensorNames(
        embedding="embed_tokens.weight",
        norm="embedding_norm.weight",
        blocks={
            "short_conv": BlockNames("operator_norm.weight", "conv"),
            "attention": BlockNames("operator_norm.weight", "self_attn"),
            "mlp": BlockNames("ffn_norm.weight", "feed_forward"),
            "moe": BlockNames("ffn_norm.weight", "feed_forward"),
        },
        gate_proj="w1",
        up_proj="w3",
        down_proj="w2",
        attention=AttentionNames("out_proj", "q_layernorm.weight", "k_layernorm.weight"),
        moe=MoeNames(
            router="feed_forward.gate.weight",
            correction="feed_forward.expert_bias",
            gate_up=("feed_forward.experts.{expert}.w1.weight", "feed_forward.experts.{expert}.w3.weight"),
            down="feed_forward.experts.{expert}.w2.weight",
            shared_gate_up=(),
            shared_down="",
            stacked=("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
        ),
    ),
    "olmo_hybrid": TensorNames(
        embedding="embed_tokens.weight",
        norm="norm.weight",
        blocks={
            "gated_delta": BlockNames(
                "input_layernorm.weight", "linear_attn", other_norm="attention_layer_norm.weight"
            ),
            # Transformers writes the norm after attention under the other name of the norm before an MLP.
            "attention": BlockNames(
                "",
                "self_attn",
                norms_after=("post_attention_layernorm.weight", "feedforward_layer_norm.weight"),
            ),
            "mlp": BlockNames(
                "post_attention_layernorm.weight",
                "mlp",
                other_norm="feedforward_layer_norm.weight",
                norms_after=("post_feedforward_layernorm.weight",),
            ),
        },
        delta=DeltaNames(
            inputs=("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"),
            output="o_proj",
            norm="o_norm.weight",
        ),
    ),
}
"""Names by `ModelConfig.family`."""
