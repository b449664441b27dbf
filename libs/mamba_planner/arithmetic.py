"""Bytes of states, attention KV, weights and activations of a model on one device. Pure arithmetic.

The planner, the cache layout and the documentation read these; the table of shapes in the tests pins them.
"""

from dataclasses import dataclass

from mamba_api.choices import Quantization
from mamba_planner.errors import UnusableInput
from mamba_planner.model_config import ModelConfig

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""float64 is not offered as a setting: it is what states are compared in."""

INT8_BLOCK = 32
"""Weights of a matrix that share a scale when they are int8."""
INT8_BLOCK_BYTES = INT8_BLOCK + 2
"""With a float16 scale."""

_ALIGNMENT = 256
"""Slab size is a multiple of this where there are no pages to be a multiple of."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """Elements of one recurrent layer's state on one device."""

    conv: int
    """Convolution window: (K-1) * C, kept in the activation type."""
    ssm: int
    """Recurrent part: H * P * N (gated delta: value heads * key width * value width), in the state type."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """One sequence's state, all recurrent layers, on one device."""

    conv: int
    ssm: int

    @property
    def total(self) -> int:
        return self.conv + self.ssm


def layer_state(model: ModelConfig, tensor_parallel: int = 1) -> LayerState:
    """Elements per recurrent layer on one of `tensor_parallel` devices.

    Heads are split; groups (and key heads) are split while there are enough of them and replicated after
    that, so each device has at least one. Raises `UnusableInput` when heads do not divide.
    """
    if (mamba := model.mamba) is not None:
        heads = _split(mamba.heads, tensor_parallel, "state space heads")
        groups = _split_or_replicate(mamba.groups, tensor_parallel, "groups")
        channels = heads * mamba.head_dim + 2 * groups * mamba.state_size
        return LayerState((mamba.conv_kernel - 1) * channels, heads * mamba.head_dim * mamba.state_size)
    if (delta := model.gated_delta) is not None:
        heads = _split(delta.value_heads, tensor_parallel, "value heads")
        keys = _split_or_replicate(delta.key_heads, tensor_parallel, "key heads")
        channels = heads * delta.value_dim + 2 * keys * delta.key_dim
        return LayerState((delta.conv_kernel - 1) * channels, heads * delta.value_dim * delta.key_dim)
    return LayerState(0, 0)


def state_bytes(
    model: ModelConfig, state_dtype: str, activation_dtype: str, tensor_parallel: int = 1
) -> StateBytes:
    """Bytes of one state on one device: SSM part at `state_dtype`, window at `activation_dtype`."""
    layer = layer_state(model, tensor_parallel)
    return StateBytes(
        conv=model.recurrent_layers * layer.conv * DTYPE_BYTES[activation_dtype],
        ssm=model.recurrent_layers * layer.ssm * DTYPE_BYTES[state_dtype],
    )


def kv_bytes_per_token(model: ModelConfig, dtype: str, tensor_parallel: int = 1) -> int:
    """Bytes of keys and values of one token, all attention layers, on one device."""
    if (attention := model.attention) is None:
        return 0
    heads = _split_or_replicate(attention.kv_heads, tensor_parallel, "key-value heads")
    return 2 * model.attention_layers * heads * attention.head_dim * DTYPE_BYTES[dtype]


def weights_bytes(
    model: ModelConfig, dtype: str, tensor_parallel: int = 1, quantization: Quantization = "none"
) -> int:
    """Bytes of the weights on one device by parameter count; true bytes of the files win over this."""
    # All but a hundredth of a model is matrices.
    return -(-loaded_bytes(model.parameters, model.parameters, dtype, quantization) // tensor_parallel)


def loaded_bytes(elements: int, of_matrices: int, dtype: str, quantization: Quantization) -> int:
    """Bytes of weights in memory: `elements` in all, of which `of_matrices` are what quantization takes."""
    if quantization == "none":
        return elements * DTYPE_BYTES[dtype]
    return -(-of_matrices * INT8_BLOCK_BYTES // INT8_BLOCK) + (elements - of_matrices) * DTYPE_BYTES[dtype]


def active_parameters(model: ModelConfig) -> tuple[int, int]:
    """(always read, all experts'): parameters every token needs, and those only some tokens need."""
    if (moe := model.moe) is None:
        return model.parameters, 0
    width = moe.latent or model.hidden_size
    expert = width * moe.intermediate * (3 if moe.gated else 2)
    experts = model.layers.count("moe") * moe.experts * expert
    return model.parameters - experts, experts


def slab_bytes(state: int, page_bytes: int) -> int:
    """One state rounded up to whole pages; without pages, to the alignment."""
    unit = page_bytes or _ALIGNMENT
    return max(1, -(-state // unit)) * unit


def _split(count: int, ways: int, what: str) -> int:
    if ways < 1 or count % ways:
        raise UnusableInput(
            f"tensorParallel {ways} does not divide the model's {count} {what}; use a divisor of {count}"
        )
    return count // ways


def _split_or_replicate(count: int, ways: int, what: str) -> int:
    if count >= ways:
        return _split(count, ways, what)
    if ways % count:
        raise UnusableInput(
            f"tensorParallel {ways} is not a multiple of the model's {count} {what}, which are replicated; "
            f"use a multiple of {count}"
        )
    return 1


@dataclass(frozen=True, slots=True)
class WeightsSize:
    """Bytes as stored, the number of elements they are, and how many of those are in matrices."""

    bytes: int
    elements: int
    of_matrices: int

    def loaded(self, dtype: str, quantization: Quantization = "none") -> int:
        """Bytes in memory as `dtype`, whatever type the files have."""
        return loaded_bytes(self.elements, self.of_matrices, dtype, quantization)


def attention_ratio(model: ModelConfig) -> float:
    """Arithmetic of attention for one token before, relative to all else of a token; 0 without attention.

    A token multiplies with each active parameter once (2 FLOPs), and in each attention layer with the key and
    the value of every token before it (2 FLOPs a channel each).
    """
    if (attention := model.attention) is None:
        return 0.0
    always, experts = active_parameters(model)
    share = model.moe.experts_per_token / model.moe.experts if model.moe is not None else 0.0
    linear = 2.0 * (always + share * experts)
    return 4.0 * model.attention_layers * attention.heads * attention.head_dim / max(linear, 1.0)


def prefill_work(start: int, stop: int, ratio: float) -> float:
    """Work of the tokens [start, stop) of a prompt: their number and what attention adds."""
    return (stop - start) + ratio * (stop * stop - start * start) / 2
