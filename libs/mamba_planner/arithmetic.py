"""Bytes and work of a model on one device: states, attention KV, parameters, weights, prompts. Pure.

The planner, the cache layout, the engine, the gateway and the documentation read these numbers; the table of
shapes in the tests pins them. The bytes of the weights are estimated from the number of parameters only where
their true size is not known.
"""

from dataclasses import dataclass, replace

from mamba_api.choices import FP8_PAGES, KvCacheDtype, Quantization
from mamba_planner.errors import UnusableInput
from mamba_planner.model_config import ModelConfig

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element by type. float64 is not offered as a setting; states are compared in it."""
INT8_BLOCK = 32
"""Number of int8 weights of a matrix that share a scale."""
INT8_BLOCK_BYTES = INT8_BLOCK + 2
"""Bytes of such a block with its float16 scale."""
INT4_BLOCK_BYTES = INT8_BLOCK // 2 + 2
"""Bytes of `INT8_BLOCK` weights of four bits with their float16 scale."""
INT4_ZEROS_BLOCK_BYTES = INT4_BLOCK_BYTES + 1
"""Bytes of a block of `INT4_BLOCK_BYTES` with the number that stands for zero."""
FP8_SCALE_BYTES = 4
"""Bytes of one scale of an FP8 matrix, which belongs to an output or to 128 inputs of one."""
PAGE_SCALE_BYTES = 1
"""Bytes of the scale that a head's key or value of one token has in pages of FP8."""
BLOCK_DTYPES = ("bfloat16", "float32")
"""Types of rows that the kernels of CPUs multiply by integers."""
_ALIGNMENT = 256
"""Unit of the slab size in bytes for models without pages."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """Number of elements of one recurrent layer's state on one device."""

    conv: int
    """Elements of the convolution window: (K-1) * C, stored in the activation type."""
    ssm: int
    """Elements of the recurrent part: H * P * N (gated delta: value heads * key width * value width; 0 if the
    window is the whole state), stored in the state type."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of one sequence's state on one device, over all recurrent layers."""

    conv: int
    ssm: int

    @property
    def total(self) -> int:
        return self.conv + self.ssm


def layer_state(model: ModelConfig, tensor_parallel: int = 1) -> LayerState:
    """Return the elements per recurrent layer on one of `tensor_parallel` devices.

    Heads are split. Groups (and key heads) are split while there are enough of them and replicated beyond
    that, so each device has at least one. Raises `UnusableInput` if heads do not divide.
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
    if (short := model.short_conv) is not None:
        return LayerState((short.conv_kernel - 1) * _split(short.channels, tensor_parallel, "channels"), 0)
    return LayerState(0, 0)


def mixer_inputs(model: ModelConfig) -> int:
    """Return the elements that a recurrent layer's input projection computes for one token."""
    if (mamba := model.mamba) is not None:
        return mamba.inner + mamba.conv_dim + mamba.heads
    if (delta := model.gated_delta) is not None:
        return delta.conv_dim + delta.value_heads * (delta.value_dim + 1 + delta.decays)
    if (short := model.short_conv) is not None:
        return 3 * short.channels
    return 0


def ring_inputs(model: ModelConfig) -> int:
    """Return how many elements a recurrent layer keeps of a token whose inputs wait to be added to its state.

    They are what the recurrence reads of the token, padded to 16 bytes of 16-bit elements, as the kernels
    read them.
    """
    width = 0
    if (mamba := model.mamba) is not None:
        width = mamba.inner + mamba.groups * mamba.state_size + mamba.heads
    if (delta := model.gated_delta) is not None:
        values = delta.value_heads * delta.value_dim
        width = delta.key_heads * delta.key_dim + values + (1 + delta.decays) * delta.value_heads
    return -(-width // 8) * 8


def state_bytes(
    model: ModelConfig, state_dtype: str, activation_dtype: str, tensor_parallel: int = 1
) -> StateBytes:
    """Return the bytes of one state on one device, over all recurrent layers.

    `state_dtype` is the type of the SSM part, and `activation_dtype` the type of the convolution window.
    """
    layer = layer_state(model, tensor_parallel)
    return StateBytes(
        conv=model.recurrent_layers * layer.conv * DTYPE_BYTES[activation_dtype],
        ssm=model.recurrent_layers * layer.ssm * DTYPE_BYTES[state_dtype],
    )


def kv_bytes_per_token(
    model: ModelConfig, dtype: str, tensor_parallel: int = 1, kv_cache_dtype: KvCacheDtype = "auto"
) -> int:
    """Return the bytes of keys and values of one token on one device, over all layers that have any.

    `dtype` is the type of the activations, and `kv_cache_dtype` the type of pages; scales count as well.
    """
    if (attention := model.attention) is None:
        return 0
    heads = _split_or_replicate(attention.kv_heads, tensor_parallel, "key-value heads")
    row = attention.head_dim * DTYPE_BYTES[dtype]
    if kv_cache_dtype == FP8_PAGES:
        row = attention.head_dim + PAGE_SCALE_BYTES
    return attention.parts * model.kv_layers * heads * row


def page_tail_bytes(model: ModelConfig, dtype: str) -> int:
    """Return the bytes at the end of a page, behind its keys and values.

    These are the hidden state of the page's last token, from which a head for drafts continues on the next
    page; 0 without such a head.
    """
    return model.hidden_size * DTYPE_BYTES[dtype] if model.draft_head else 0


def page_bytes(
    model: ModelConfig,
    dtype: str,
    page_size: int,
    tensor_parallel: int = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
) -> int:
    """Return the bytes of a page of `page_size` tokens on one device; 0 without attention."""
    token = kv_bytes_per_token(model, dtype, tensor_parallel, kv_cache_dtype)
    return token * page_size + page_tail_bytes(model, dtype)


def weights_bytes(
    model: ModelConfig,
    dtype: str,
    tensor_parallel: int = 1,
    quantization: Quantization = "none",
    *,
    on_cpu: bool = False,
) -> int:
    """Return the bytes of the weights on one device, estimated from the number of parameters.

    The estimate is for weights of the type `dtype` with `quantization`. If the size of the model's files is
    known, the planner uses that size instead.
    """
    # Matrices are 99 percent of a model.
    size = WeightsSize(0, model.parameters, model.parameters)
    if (stored := model.stored) is not None:
        size = replace(
            size,
            int8=stored.int8,
            int4=stored.int4,
            int4_zeros=stored.int4_zeros,
            packed=stored.packed,
            packed_bytes=stored.packed_bytes,
        )
    return -(-size.loaded(model, dtype, quantization, on_cpu=on_cpu) // tensor_parallel)


def vocabulary_elements(model: ModelConfig) -> int:
    """Return the elements of the embedding and of the output head, which are one matrix if tied."""
    return model.vocab_size * model.hidden_size * (1 if model.tie_embeddings else 2)


def active_parameters(model: ModelConfig) -> tuple[int, int]:
    """Return the number of parameters every token needs, and the number in all experts.

    Parameters that layers share count once for each use.
    """
    always = model.parameters + _repeated_parameters(model)
    if (moe := model.moe) is None:
        return always, 0
    width = moe.latent or model.hidden_size
    expert = width * moe.intermediate * (3 if moe.gated else 2)
    experts = model.layers.count("moe") * moe.experts * expert
    return always - experts, experts


def _repeated_parameters(model: ModelConfig) -> int:
    """Return the number of parameters that a token needs again, for each use after the first."""
    if (shared := model.shared) is None:
        return 0
    uses = model.layers.count("shared_mamba")
    return (uses - min(uses, shared.blocks)) * _shared_block(model)


def slab_bytes(state: int, page_bytes: int) -> int:
    """Return the size of one state rounded up to whole pages, or to the alignment without pages."""
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
    """Size of a model's weights as stored: bytes, number of elements, and elements in matrices.

    Engines and loaders read it from the files.
    """

    bytes: int
    elements: int
    of_matrices: int
    int8: int = 0
    """Elements of matrices whose stored numbers are held as int8 on CPUs."""
    int4: int = 0
    """Elements of matrices whose stored numbers are held as int4 on CPUs."""
    int4_zeros: int = 0
    """Elements of matrices that are held as int4 on CPUs, with the number for zero in each block."""
    packed: int = 0
    """Elements of matrices that stay in four bits on GPUs."""
    packed_bytes: int = 0
    """Bytes that the matrices of `packed` take on a GPU."""
    rows: int = 0
    """Rows of the matrices: the outputs, of which each has a scale in FP8. 0 = they are not known."""
    fp8: int = 0
    """Elements of matrices that are stored as FP8; 0 = there are none, and quantization fp8 rounds all
    matrices."""
    fp8_scales: int = 0
    """Number of the scales of the matrices of `fp8` in memory."""

    def loaded(
        self,
        model: ModelConfig,
        dtype: str,
        quantization: Quantization = "none",
        *,
        on_cpu: bool = False,
    ) -> int:
        """Return the bytes in memory in the type `dtype`, whatever type the files of `model` have.

        int8, int4 and fp8 are forms of matrices alone. With int4, embedding and head are int8 on CPUs and of
        the type `dtype` on GPUs. With fp8, embedding, head and routers are of the type `dtype`. On CPUs,
        matrices that are stored as integers stay so, unless the quantization asks for fewer bits or for FP8.
        On GPUs, matrices of four bits stay so, unless it asks for FP8.
        """
        if quantization == "fp8":
            fp8, scales = (self.fp8, self.fp8_scales) if self.fp8 else self._rounded(model)
            return fp8 + scales * FP8_SCALE_BYTES + (self.elements - fp8) * DTYPE_BYTES[dtype]
        if not on_cpu and quantization != "int8":
            return self._on_gpu(model, dtype, fitted=quantization == "int4")
        kept = on_cpu and dtype in BLOCK_DTYPES
        int8 = self.int8 if kept and quantization != "int4" else 0
        int4, int4_zeros = (self.int4, self.int4_zeros) if kept else (0, 0)
        rest = self.of_matrices - int8 - int4 - int4_zeros
        if quantization == "int8":
            int8 += rest
        elif quantization == "int4":
            of_vocabulary = min(vocabulary_elements(model), rest)
            int8, int4 = int8 + of_vocabulary, int4 + rest - of_vocabulary
        in_blocks = int8 + int4 + int4_zeros
        of_blocks = int8 * INT8_BLOCK_BYTES + int4 * INT4_BLOCK_BYTES + int4_zeros * INT4_ZEROS_BLOCK_BYTES
        return -(-of_blocks // INT8_BLOCK) + (self.elements - in_blocks) * DTYPE_BYTES[dtype]

    def _on_gpu(self, model: ModelConfig, dtype: str, *, fitted: bool) -> int:
        """Return the bytes on a GPU. `fitted` says whether ordinary matrices are rounded to four bits."""
        rest = self.of_matrices - self.packed
        blocks = rest - min(vocabulary_elements(model), rest) if fitted else 0
        ordinary = self.elements - self.packed - blocks
        of_blocks = -(-blocks * INT4_BLOCK_BYTES // INT8_BLOCK)
        return self.packed_bytes + of_blocks + ordinary * DTYPE_BYTES[dtype]

    def _rounded(self, model: ModelConfig) -> tuple[int, int]:
        """Return the elements and the scales of the matrices that quantization fp8 rounds to FP8."""
        others, other_rows = kept_matrices(model)
        elements = self.of_matrices - min(others, self.of_matrices)
        rows = self.rows - other_rows if self.rows else elements // model.hidden_size
        return elements, max(0, rows)


def kept_matrices(model: ModelConfig) -> tuple[int, int]:
    """Return the elements and rows of the matrices that FP8 leaves out: vocabulary, routers, latent heads."""
    hidden, vocabularies = model.hidden_size, 1 if model.tie_embeddings else 2
    rows = model.vocab_size * vocabularies
    elements = rows * hidden
    if (moe := model.moe) is not None:
        routers = model.layers.count("moe") * (moe.experts + bool(moe.shared_gate))
        rows, elements = rows + routers, elements + routers * hidden
    attention = model.attention
    if attention is not None and (latent := attention.latent) is not None:
        heads = model.attention_layers * attention.heads * (latent.own + latent.values)
        rows, elements = rows + heads, elements + heads * latent.rank
    return elements, rows


def attention_ratio(model: ModelConfig) -> float:
    """Return the attention work for one preceding token, relative to all other work of a token.

    The ratio is 0 without attention. A token multiplies with each active parameter once (2 FLOPs), and in
    each attention layer with the key and the value of every preceding token (2 FLOPs per channel each).
    """
    if (attention := model.attention) is None:
        return 0.0
    always, experts = active_parameters(model)
    share = model.moe.experts_per_token / model.moe.experts if model.moe is not None else 0.0
    linear = 2.0 * (always + share * experts)
    return 4.0 * model.attention_layers * attention.heads * attention.head_dim / max(linear, 1.0)


def prefill_work(start: int, stop: int, ratio: float) -> float:
    """Return the work of the tokens [start, stop) of a prompt, in units of the first token's work.

    A token costs the same at every depth except for attention, which reads all preceding tokens: one part is
    linear in the length, the other quadratic. The engine divides this work by the measured time, and the
    gateway multiplies it with the measured speed, so that both use the same unit.
    """
    return (stop - start) + ratio * (stop * stop - start * start) / 2


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
        "short_conv": _short_conv(config),
        "mlp": _mlp(config),
        "moe": _moe(config),
        "shared_mamba": _mamba(config) + _shared_use(config),
    }
    layers = sum(per_kind[kind] + hidden for kind in config.layers)
    if config.shared is not None:
        layers += min(config.shared.blocks, config.layers.count("shared_mamba")) * _shared_block(config)
    return config.vocab_size * hidden + head + hidden + layers


def head_parameters(config: ModelConfig) -> int:
    """Return the parameters of a head for drafts: a projection of two rows, a layer, and norms."""
    hidden = config.hidden_size
    feed_forward = _moe(config) if config.moe is not None else _mlp(config)
    return 2 * hidden * hidden + _attention(config) + feed_forward + 5 * hidden


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
    if (latent := mixer.latent) is not None:
        queries, outputs = latent.own + latent.shared, latent.own + latent.values
        return config.hidden_size * (
            mixer.heads * (queries + latent.values) + mixer.head_dim
        ) + latent.rank * (1 + mixer.heads * outputs)
    query = mixer.heads * mixer.head_dim
    key_value = 2 * mixer.kv_heads * mixer.head_dim
    widened = query * (2 if mixer.output_gate else 1)
    normed = query + key_value // 2 if mixer.joint_norm else 2 * mixer.head_dim
    return (
        config.hidden_size * (widened + key_value + query)
        + (widened + key_value + config.hidden_size if mixer.bias else 0)
        + (normed if mixer.qk_norm else 0)
    )


def _gated_delta(config: ModelConfig) -> int:
    if (mixer := config.gated_delta) is None:
        return 0
    values = mixer.value_heads * mixer.value_dim
    keys = mixer.key_heads * mixer.key_dim
    heads, decays = mixer.value_heads, mixer.decays
    gates = config.hidden_size * (values + heads)
    if (rank := mixer.gate_rank) is not None:
        gates = rank * (2 * config.hidden_size + values + heads * decays)
    return (
        config.hidden_size * (2 * keys + values + heads)
        + gates
        + mixer.conv_dim * mixer.conv_kernel
        + heads * (1 + decays)  # A_log, dt_bias
        + mixer.value_dim
        + values * config.hidden_size
    )


def _shared_block(config: ModelConfig) -> int:
    """Return the parameters of a transformer block that several layers share."""
    if (attention := config.attention) is None:
        return 0
    hidden = config.hidden_size
    # Queries, keys and values come from rows of two widths, and the result has one.
    heads = 2 * (attention.heads + 2 * attention.kv_heads) + attention.heads
    return 3 * hidden + heads * attention.head_dim * hidden + _mlp(config)


def _shared_use(config: ModelConfig) -> int:
    """Return the parameters that each use of a shared transformer block has for itself."""
    if (shared := config.shared) is None or config.mlp is None:
        return 0
    hidden, rank = config.hidden_size, shared.adapter_rank
    adapters = rank * (hidden + 2 * config.mlp.intermediate)
    if shared.attention_adapters:
        adapters += 3 * rank * 4 * hidden
    return adapters + hidden * hidden


def _short_conv(config: ModelConfig) -> int:
    if (mixer := config.short_conv) is None:
        return 0
    weights = mixer.channels * (4 * config.hidden_size + mixer.conv_kernel)
    return weights + (4 * mixer.channels + config.hidden_size if mixer.bias else 0)


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
