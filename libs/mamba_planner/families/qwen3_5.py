"""Qwen3.5, 3.6 and 3.8: the mixers of Qwen3-Next, with dense feed-forwards or with experts in every layer.

The registry calls this adapter with the text part of a multimodal configuration, or with one of a text model.
"""

from mamba_planner.families import qwen3_next
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import ModelConfig

MOE = "Qwen3_5MoeForCausalLM"
"""Architecture whose layers have experts. The layers of the other architecture are dense."""
_SILU = ("silu", "swish")


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    sparse = architecture == MOE
    _check(fields, sparse=sparse)
    mixers = qwen3_next.mixers(fields)
    return qwen3_next.of_parts(
        fields,
        "qwen3_5",
        architecture,
        mixers,
        ["moe" if sparse else "mlp"] * len(mixers),
        kv_heads=2 if sparse else 4,
        state_dtype=fields.word("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default="") or None,
    )


def _check(fields: Fields, *, sparse: bool) -> None:
    """Raise `WrongField` for a field that asks for a computation which the family does not have.

    The sections of rotary positions for pictures (`mrope_section`, `mrope_interleaved`) need no check: a text
    token has the same position in each section.
    """
    if not fields.flag("attn_output_gate", default=True):
        raise fields.wrong("attn_output_gate", "false is not supported: attention of this family has a gate")
    gate = fields.word("output_gate_type", default="silu")
    if gate not in _SILU:
        raise fields.wrong("output_gate_type", f"{gate!r} is not supported; supported: {', '.join(_SILU)}")
    if not sparse:
        return
    if not fields.flag("norm_topk_prob", default=True):
        raise fields.wrong(
            "norm_topk_prob", "false is not supported: the weights of chosen experts add up to 1"
        )
    if fields.items("mlp_only_layers"):
        raise fields.wrong("mlp_only_layers", "is not supported: every layer of this family has experts")
    if (step := fields.integer("decoder_sparse_step", default=1)) != 1:
        raise fields.wrong(
            "decoder_sparse_step", f"{step} is not supported: every layer of this family has experts"
        )
