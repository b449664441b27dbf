"""The structures of `src/interface.h` for ctypes, field by field in the same order.

A test compares names, types, sizes and offsets with those that a compiler sees.
"""

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
WHOLE, INT8, INT4, INT4_ZEROS = 0, 1, 2, 3
IDENTITY, RELU, RELU_SQUARED, SILU = 0, 1, 2, 3
MAMBA_BLOCK, ATTENTION_BLOCK, MLP_BLOCK, PARALLEL_BLOCK, MOE_BLOCK, DELTA_BLOCK = 0, 1, 2, 3, 4, 5
SHORT_CONV_BLOCK = 6


class LinearLayer(Structure):
    """A packed matrix with its bias, shape and activation.

    If it is a part of a `JoinedMatrix`, `rest` points to the next part.
    """

    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("kind", c_int32),
        ("packing", c_int32),
        ("activation", c_int32),
        ("order", c_void_p),
        ("rest", c_void_p),
        ("part", c_int64),
        ("changes", c_void_p),
    )


class AdapterPart(Structure):
    """Matrices B of adapters for those outputs of a product that belong to one module of the checkpoint."""

    _fields_ = (
        ("second", c_void_p),
        ("start", c_int64),
        ("width", c_int64),
    )


class AdapterChanges(Structure):
    """Low-rank matrices of several adapters, which change the rows of one product."""

    _fields_ = (
        ("plain", c_void_p),
        ("first", c_void_p),
        ("parts", c_void_p),
        ("ranks", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("part_count", c_int32),
        ("rank", c_int32),
        ("kind", c_int32),
    )


class Mixer(Structure):
    """Weights and shape of a Mamba2 mixer between its projections."""

    _fields_ = (
        ("conv_weight", c_void_p),
        ("conv_bias", c_void_p),
        ("rate", c_void_p),
        ("skip", c_void_p),
        ("step_bias", c_void_p),
        ("norm_weight", c_void_p),
        ("step_min", c_float),
        ("step_max", c_float),
        ("norm_eps", c_float),
        ("heads", c_int32),
        ("head_dim", c_int32),
        ("groups", c_int32),
        ("state_size", c_int32),
        ("taps", c_int32),
        ("norm_groups", c_int32),
    )


_MIXER_CALL = (
    ("mixer", c_void_p),
    ("projected", c_void_p),
    ("projected_stride", c_int64),
    ("window", c_void_p),
    ("window_stride", c_int64),
    ("state", c_void_p),
    ("state_stride", c_int64),
    ("source", c_void_p),
    ("target", c_void_p),
)
"""Fields with which all calls of a mixer begin."""


class StateRing(Structure):
    """The ring of one layer, and what the rows of a step do with its lanes.

    If `lane` is null, no state lacks inputs, and all rows write their states.
    """

    _fields_ = (
        ("inputs", c_void_p),
        ("width", c_int64),
        ("lane_inputs", c_int64),
        ("lane", c_void_p),
        ("waiting", c_void_p),
        ("writes", c_void_p),
    )


class MambaDecode(Structure):
    """Arguments of the kernel that computes one token of each sequence in a Mamba2 mixer."""

    _fields_ = (
        *_MIXER_CALL,
        ("track", c_void_p),
        ("noise", c_void_p),
        ("out", c_void_p),
        ("ring", StateRing),
        ("rows", c_int32),
        ("kind", c_int32),
        ("state_kind", c_int32),
    )


class MambaPrefill(Structure):
    """Arguments of the kernel that computes pieces of prompts in a Mamba2 mixer."""

    _fields_ = (
        *_MIXER_CALL,
        ("piece_chunk", c_void_p),
        ("chunk_start", c_void_p),
        ("chunk_track", c_void_p),
        ("chunk_noise", c_void_p),
        ("out", c_void_p),
        ("pieces", c_int32),
        ("kind", c_int32),
        ("state_kind", c_int32),
    )


class DeltaMixer(Structure):
    """Weights and shape of a mixer of the gated delta rule between its projections."""

    _fields_ = (
        ("conv_weight", c_void_p),
        ("rate", c_void_p),
        ("step_bias", c_void_p),
        ("norm_weight", c_void_p),
        ("norm_eps", c_float),
        ("least_square", c_float),
        ("scale", c_float),
        ("beta_scale", c_float),
        ("heads", c_int32),
        ("key_heads", c_int32),
        ("value_dim", c_int32),
        ("key_dim", c_int32),
        ("taps", c_int32),
        ("decays", c_int32),
        ("sigmoid_gate", c_int32),
    )


class DeltaDecode(Structure):
    """Arguments of the kernel that computes one token of each sequence in a mixer of the gated delta rule."""

    _fields_ = MambaDecode._fields_


class DeltaPrefill(Structure):
    """Arguments of the kernel that computes pieces of prompts in a mixer of the gated delta rule."""

    _fields_ = MambaPrefill._fields_


class ShortConvMixer(Structure):
    """Weights and shape of a gated short convolution between its projections."""

    _fields_ = (
        ("conv_weight", c_void_p),
        ("conv_bias", c_void_p),
        ("channels", c_int64),
        ("taps", c_int32),
    )


_SHORT_CONV_CALL = (
    ("mixer", c_void_p),
    ("projected", c_void_p),
    ("projected_stride", c_int64),
    ("window", c_void_p),
    ("window_stride", c_int64),
    ("source", c_void_p),
    ("target", c_void_p),
)
"""Fields with which both calls of a gated short convolution begin."""


class ShortConvDecode(Structure):
    """Arguments of the kernel that computes one token of each sequence in a gated short convolution."""

    _fields_ = (
        *_SHORT_CONV_CALL,
        ("track", c_void_p),
        ("out", c_void_p),
        ("rows", c_int32),
        ("kind", c_int32),
    )


class ShortConvPrefill(Structure):
    """Arguments of the kernel that computes pieces of prompts in a gated short convolution."""

    _fields_ = (
        *_SHORT_CONV_CALL,
        ("piece_chunk", c_void_p),
        ("chunk_start", c_void_p),
        ("chunk_track", c_void_p),
        ("out", c_void_p),
        ("pieces", c_int32),
        ("kind", c_int32),
    )


class RmsNorm(Structure):
    """Arguments of the kernel that norms rows of the residual stream."""

    _fields_ = (
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("added", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("eps", c_float),
        ("x_kind", c_int32),
        ("kind", c_int32),
        ("weight_kind", c_int32),
    )


_PAGES = (
    ("kv", c_void_p),
    ("page_stride", c_int64),
    ("value_offset", c_int64),
    ("scales", c_void_p),
    ("scale_stride", c_int64),
    ("scale_offset", c_int64),
)
"""Fields of every kernel that reads or writes pages, which `set_pages` fills."""


class PagedDecode(Structure):
    """Arguments of the kernel that computes the attention of decoding sequences over their pages."""

    _fields_ = (
        ("query", c_void_p),
        ("query_stride", c_int64),
        *_PAGES,
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("table_row", c_void_p),
        ("context_len", c_void_p),
        ("out", c_void_p),
        ("scale", c_float),
        ("rows", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("page_size", c_int32),
        ("kind", c_int32),
    )


class PagedExtend(Structure):
    """Arguments of the kernel that computes the attention of pieces of prompts over their pages."""

    _fields_ = (
        ("query", c_void_p),
        ("query_stride", c_int64),
        *_PAGES,
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("table_row", c_void_p),
        ("context_len", c_void_p),
        ("piece_start", c_void_p),
        ("out", c_void_p),
        ("scale", c_float),
        ("pieces", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("page_size", c_int32),
        ("kind", c_int32),
    )


class KvWrite(Structure):
    """Arguments of the kernel that rounds new keys and values into pages of FP8."""

    _fields_ = (
        ("key", c_void_p),
        ("key_stride", c_int64),
        ("value", c_void_p),
        ("value_stride", c_int64),
        *_PAGES,
        ("key_row", c_void_p),
        ("rows", c_int64),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("page_size", c_int32),
        ("kind", c_int32),
    )


class DeltaRows(Structure):
    """The part of the arguments that both kernels of the gated delta rule have: rows, states and shape."""

    _fields_ = (
        ("q", c_void_p),
        ("q_row", c_int64),
        ("q_head", c_int64),
        ("k", c_void_p),
        ("k_row", c_int64),
        ("k_head", c_int64),
        ("v", c_void_p),
        ("v_row", c_int64),
        ("v_head", c_int64),
        ("a", c_void_p),
        ("a_row", c_int64),
        ("b", c_void_p),
        ("b_row", c_int64),
        ("rate", c_void_p),
        ("step_bias", c_void_p),
        ("state", c_void_p),
        ("state_slab", c_int64),
        ("state_head", c_int64),
        ("state_row", c_int64),
        ("out", c_void_p),
        ("out_row", c_int64),
        ("out_head", c_int64),
        ("least_square", c_float),
        ("scale", c_float),
        ("beta_scale", c_float),
        ("heads", c_int32),
        ("key_heads", c_int32),
        ("value_dim", c_int32),
        ("key_dim", c_int32),
        ("kind", c_int32),
        ("state_kind", c_int32),
        ("decays", c_int32),
    )


class GatedDeltaUpdate(Structure):
    """Arguments of the kernel that computes one token of each sequence by the gated delta rule."""

    _fields_ = (
        ("delta", DeltaRows),
        ("source", c_void_p),
        ("target", c_void_p),
        ("track", c_void_p),
        ("noise", c_void_p),
        ("ring", StateRing),
        ("rows", c_int32),
    )


class GatedDeltaPrefill(Structure):
    """Arguments of the kernel that computes pieces of prompts by the gated delta rule."""

    _fields_ = (
        ("delta", DeltaRows),
        ("source", c_void_p),
        ("target", c_void_p),
        ("piece_chunk", c_void_p),
        ("chunk_start", c_void_p),
        ("chunk_track", c_void_p),
        ("chunk_noise", c_void_p),
        ("pieces", c_int32),
    )


class Experts(Structure):
    """Arguments of the kernel that computes a mixture of experts."""

    _fields_ = (
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("shared_gate_up", c_void_p),
        ("shared_down", c_void_p),
        ("hidden", c_void_p),
        ("hidden_stride", c_int64),
        ("chosen", c_void_p),
        ("weights", c_void_p),
        ("shared_gate", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("top_k", c_int32),
        ("experts", c_int32),
        ("gated", c_int32),
        ("kind", c_int32),
    )


class Router(Structure):
    """A router's weight and the rule by which it chooses and weights the experts of a row."""

    _fields_ = (
        ("linear", c_void_p),
        ("correction", c_void_p),
        ("experts", c_int32),
        ("top_k", c_int32),
        ("groups", c_int32),
        ("kept_groups", c_int32),
        ("sigmoid", c_int32),
        ("renormalise", c_int32),
        ("scale", c_float),
    )


class Rope(Structure):
    """Arguments of the kernel that rotates the heads of rows."""

    _fields_ = (
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rows", c_int64),
        ("heads", c_int32),
        ("head_dim", c_int32),
        ("half", c_int32),
        ("kind", c_int32),
    )


class SigmoidGate(Structure):
    """Arguments of the kernel that multiplies rows by the sigmoid of a gate."""

    _fields_ = (
        ("x", c_void_p),
        ("gate", c_void_p),
        ("gate_stride", c_int64),
        ("rows", c_int64),
        ("width", c_int64),
        ("kind", c_int32),
    )


class DecodeBlock(Structure):
    """One residual block of a whole decode step; `kind` says which of its fields are used."""

    _fields_ = (
        ("norm", RmsNorm),
        ("result_norm", RmsNorm),
        ("mamba", MambaDecode),
        ("delta", DeltaDecode),
        ("short_conv", ShortConvDecode),
        ("router", Router),
        ("experts", Experts),
        ("attention", PagedDecode),
        ("query_norm", RmsNorm),
        ("key_norm", RmsNorm),
        ("in_proj", c_void_p),
        ("gate_proj", c_void_p),
        ("out_proj", c_void_p),
        ("attention_in_proj", c_void_p),
        ("attention_out_proj", c_void_p),
        ("shared_in_proj", c_void_p),
        ("shared_out_proj", c_void_p),
        ("ring", c_void_p),
        ("output_gate", c_int32),
        ("kind", c_int32),
    )


class Replay(Structure):
    """The drafts of a decode step, and the lanes whose accepted inputs are computed into live slots first."""

    _fields_ = (
        ("window", c_void_p),
        ("window_stride", c_int64),
        ("state", c_void_p),
        ("state_stride", c_int64),
        ("absorbed_slot", c_void_p),
        ("absorbed_lane", c_void_p),
        ("absorbed_count", c_void_p),
        ("absorbed_noise", c_void_p),
        ("noise_stride", c_int64),
        ("draft_slot", c_void_p),
        ("draft_lane", c_void_p),
        ("draft_len", c_void_p),
        ("draft_token", c_void_p),
        ("lane_inputs", c_int32),
        ("absorbing", c_int32),
        ("drafting", c_int32),
        ("drafts", c_int32),
    )


class DecodeStep(Structure):
    """Arguments of the kernel that computes a whole step, in which all sequences decode."""

    _fields_ = (
        ("blocks", c_void_p),
        ("embedding", c_void_p),
        ("norm", RmsNorm),
        ("last_token", c_void_p),
        ("integers", c_void_p),
        ("integers_stride", c_int64),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("places", c_void_p),
        ("replay", c_void_p),
        ("head", c_void_p),
        ("embedding_scale", c_float),
        ("rope_half", c_int32),
        ("block_count", c_int32),
        ("rows", c_int32),
        ("head_passes", c_int32),
        ("has_ring", c_int32),
    )


class DraftHead(Structure):
    """Weights and memory of a head that drafts tokens behind a model."""

    _fields_ = (
        ("step", DecodeStep),
        ("embedding_norm", RmsNorm),
        ("hidden_norm", RmsNorm),
        ("join", c_void_p),
        ("output", c_void_p),
        ("kept", c_void_p),
        ("tails", c_void_p),
        ("tails_stride", c_int64),
        ("lane_rows", c_int32),
    )


class DraftTurns(Structure):
    """The sequences for which a head is to draft tokens, and where to write these."""

    _fields_ = (
        ("table_row", c_void_p),
        ("depth", c_void_p),
        ("count", c_void_p),
        ("last_token", c_void_p),
        ("place", c_void_p),
        ("drafted", c_void_p),
        ("sequences", c_int32),
        ("most", c_int32),
    )


class CheckedBytes(Structure):
    """Pieces of memory to send to or receive from a socket, as blocks with a checksum each."""

    _fields_ = (
        ("addresses", c_void_p),
        ("lengths", c_void_p),
        ("sizes", c_void_p),
        ("digests", c_void_p),
        ("blocks", c_int64),
        ("sends", c_int32),
        ("wide", c_int32),
    )
