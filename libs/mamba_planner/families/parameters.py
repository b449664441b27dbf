"""Number of parameters of a `ModelConfig`, by arithmetic over its blocks. Pure.

The planner uses it where no weights are at hand; otherwise the true size of the weights takes precedence.
"""

from mamba_planner.model_config import ModelConfig


def count_parameters(config: ModelConfig) -> int:
    """Return the parameters of embeddings, blocks, final norm and output head (once if tied).

    Buffers do not count.
    """
    hidden = config.hidden_size
    head = 0 if config.tie_embeddings else config.vocab_size * hidden
    per_kind = {
        "mamba": _mamba(config),
        "attention": _attention(config),
        "mamba_attention": _mamba(config) + _attention(config),
        "gated_delta": _gated_delta(config),
        "mlp": _mlp(config),
        "moe": _moe(config),
    }
    return config.vocab_size * hidden + head + hidden + sum(per_kind[kind] + hidden for kind in config.layers)


def _mamba(config: ModelConfig) -> int:
    if (mixer := config.mamba) is None:
        return 0
    projected = mixer.inner + mixer.conv_dim + mixer.heads
    return (
        config.hidden_size * projected
        + (projected if mixer.proj_bias else 0)
        + mixer.conv_dim * mixer.conv_kernel
        + (mixer.conv_dim if mixer.conv_bias else 0)
        + 3 * mixer.heads  # A_log, D, dt_bias
        + (mixer.inner if mixer.gated_norm else 0)
        + mixer.inner * config.hidden_size
        + (config.hidden_size if mixer.out_bias else 0)
    )


def _attention(config: ModelConfig) -> int:
    if (mixer := config.attention) is None:
        return 0
    query = mixer.heads * mixer.head_dim
    key_value = 2 * mixer.kv_heads * mixer.head_dim
    widened = query * (2 if mixer.output_gate else 1)
    return (
        config.hidden_size * (widened + key_value + query)
        + (widened + key_value + config.hidden_size if mixer.bias else 0)
        + (2 * mixer.head_dim if mixer.qk_norm else 0)
    )


def _gated_delta(config: ModelConfig) -> int:
    if (mixer := config.gated_delta) is None:
        return 0
    values = mixer.value_heads * mixer.value_dim
    keys = mixer.key_heads * mixer.key_dim
    return (
        config.hidden_size * (2 * keys + 2 * values + 2 * mixer.value_heads)
        + mixer.conv_dim * mixer.conv_kernel
        + 2 * mixer.value_heads  # A_log, dt_bias
        + mixer.value_dim
        + values * config.hidden_size
    )


def _mlp(config: ModelConfig) -> int:
    if (mlp := config.mlp) is None:
        return 0
    return _feed_forward(config.hidden_size, mlp.intermediate, mlp.gated, mlp.bias)


def _moe(config: ModelConfig) -> int:
    if (moe := config.moe) is None:
        return 0
    hidden = config.hidden_size
    width = moe.latent or hidden
    shared = 0
    if moe.shared_intermediate:
        shared = _feed_forward(hidden, moe.shared_intermediate, moe.gated, moe.bias)
    return (
        moe.experts * _feed_forward(width, moe.intermediate, moe.gated, bias=False)
        + hidden * moe.experts
        + shared
        + (hidden if moe.shared_gate else 0)
        + ((2 * hidden * width + (hidden + width if moe.bias else 0)) if moe.latent else 0)
    )


def _feed_forward(hidden: int, intermediate: int, gated: bool, bias: bool) -> int:
    widened = intermediate * (2 if gated else 1)
    return hidden * (widened + intermediate) + (widened + hidden if bias else 0)
