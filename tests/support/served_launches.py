"""Every launch that the published models which are served make, on tensors without memory.

Shapes are those of `tests/golden/configs`; rows are cut out of projections, and states and pages out of an
arena, as the model has them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernel_variants import variant_of
from mamba_kernels.activate import Function
from mamba_kernels.activate.triton import call as activate
from mamba_kernels.conv1d_prefill.triton import call as conv1d_prefill
from mamba_kernels.conv1d_update.triton import call as conv1d_update
from mamba_kernels.delta_replay.triton import call as gated_delta_replay
from mamba_kernels.gated_delta import DeltaInputs
from mamba_kernels.gated_delta.triton import prefill_call, update_call
from mamba_kernels.gated_norm.triton import call as gated_norm
from mamba_kernels.kv_write.triton import write_call
from mamba_kernels.moe import Activation, Routing, SharedExpert
from mamba_kernels.moe import triton as moe_kernels
from mamba_kernels.moe.route_kernel import route_call
from mamba_kernels.moe.triton import calls as moe
from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.paged_attention import triton as attention_kernels
from mamba_kernels.paged_attention.triton import calls as paged_attention
from mamba_kernels.rms_norm.triton import call as rms_norm
from mamba_kernels.rope.triton import rope_call
from mamba_kernels.sample import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.sample.triton import calls as sample
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.ssd_prefill import triton as scan_kernels
from mamba_kernels.ssd_prefill.triton import calls as ssd_prefill
from mamba_kernels.state_replay import delta_width, scan_width
from mamba_kernels.state_replay.triton import call as state_replay
from mamba_kernels.state_update.triton import call as state_update
from mamba_kernels.triton_support import KernelCall
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import (
    AttentionConfig,
    GatedDeltaConfig,
    MambaConfig,
    MlpConfig,
    ModelConfig,
    MoeConfig,
    ShortConvConfig,
)
from mamba_server.model.layers.mlp import ACTIVATIONS as FUNCTIONS
from model_configs import CONFIGS
from testmodels.chunks import PiecePlan, chunk_plan

META = torch.device("meta")
WIDE, HALF = torch.float32, torch.float16
ROWS = 64
ALIKE = ("HEADS_PER_GROUP", "HEADS_PER_KEY", "HEADS")
"""Constants that change what is added to an address, and nothing that is kept in registers."""


@dataclass(frozen=True)
class ServedLaunch:
    """A launch of a model."""

    model: str
    call: KernelCall


def served_launches(capability: int) -> list[ServedLaunch]:
    """Return the launches of all models on such a GPU, one for each compilation."""
    for kernels in (attention_kernels, moe_kernels):
        kernels.warp_groups = lambda _: capability in (90, 100)  # type: ignore[assignment]
    kept: dict[Any, ServedLaunch] = {}
    for path in sorted(CONFIGS.glob("*.json")):
        model = model_config_from_hf(json.loads(path.read_text()))
        for dtype in (torch.bfloat16, WIDE):
            for call in _of_model(model, dtype):
                constants = {**call.constants, **{name: 1 for name in ALIKE if name in call.constants}}
                kept.setdefault(variant_of(replace(call, constants=constants)), ServedLaunch(path.stem, call))
    return list(kept.values())


def _of_model(model: ModelConfig, dtype: torch.dtype) -> Iterator[KernelCall]:
    d = model.hidden_size
    stream = _meta(ROWS, d, dtype=WIDE)
    weight = _meta(d, dtype=dtype)
    for added in (None, _meta(ROWS, d, dtype=dtype)):
        yield rms_norm(stream, weight, 1e-5, added, _meta(ROWS, d, dtype=dtype))
    if model.mamba is not None:
        for states in (WIDE, HALF):
            yield from _mamba(model.mamba, dtype, states)
    if model.gated_delta is not None:
        for states in (WIDE, HALF):
            yield from _delta(model.gated_delta, dtype, states)
    if model.short_conv is not None:
        yield from _short_conv(model.short_conv, dtype)
    if model.attention is not None:
        yield from _attention(model.attention, dtype)
    if model.moe is not None:
        yield from _moe(model.moe, d, dtype)
    if model.mlp is not None:
        yield _feed_forward(model.mlp, dtype)
    yield from _sample(model.vocab_size)


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def _integers(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _slots(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return one layer of three, of four slabs."""
    return _meta(4, 3, *shape, dtype=dtype)[:, 1]


def _plan(chunk: int) -> ChunkPlan:
    return chunk_plan([PiecePlan(0, ROWS, -1, 1, {2: 2})], chunk, device=META)


def _convolutions(
    x: torch.Tensor, taps: int, bias: torch.Tensor | None, dtype: torch.dtype, *, gated: bool = False
) -> Iterator[KernelCall]:
    channels = x.shape[1] // (3 if gated else 1)
    weight, window = _meta(taps, channels, dtype=WIDE), _slots(taps - 1, channels, dtype=dtype)
    yield conv1d_prefill(x, weight, bias, window, _plan(128), _meta(ROWS, channels, dtype=dtype), gated=gated)
    for rows in (1, ROWS):
        out = _meta(rows, channels, dtype=dtype)
        yield conv1d_update(x[:rows], weight, bias, window, _integers(3, rows), out, gated=gated)


def _mamba(config: MambaConfig, dtype: torch.dtype, states: torch.dtype) -> Iterator[KernelCall]:
    H, P, G, N = config.heads, config.head_dim, config.groups, config.state_size
    inner, shared = config.inner, G * N
    projected = _meta(ROWS, inner + config.conv_dim + H, dtype=dtype)
    gate, mixed, dt = projected.split([inner, config.conv_dim, H], -1)
    bias = _meta(config.conv_dim, dtype=WIDE) if config.conv_bias else None
    yield from _convolutions(mixed, config.conv_kernel, bias, dtype)
    x, B, C = _meta(ROWS, config.conv_dim, dtype=dtype).split([inner, shared, shared], -1)
    head = _meta(H, dtype=WIDE)
    inputs = ScanInputs(
        x.unflatten(1, (H, P)),
        dt,
        head,
        B.unflatten(1, (G, N)),
        C.unflatten(1, (G, N)),
        head,
        head,
        (0.0, 1e9),
    )
    state, y = _slots(H, P, N, dtype=states), _meta(ROWS, H, P, dtype=dtype)
    yield state_update(state, inputs, _integers(3, ROWS), _integers(ROWS), y)
    ring = _meta(ROWS, 7, scan_width(H, P, G, N), dtype=dtype)
    yield state_replay(state, inputs, _integers(3, ROWS), _integers(ROWS), _integers(3, ROWS), ring, y)
    yield from ssd_prefill(state, inputs, _plan(128), y)
    yield from _in_segments(state, inputs, y)
    weight = _meta(inner, dtype=dtype) if config.gated_norm else None
    yield gated_norm(y.flatten(1), gate, weight, 1e-5, G, _meta(ROWS, inner, dtype=dtype))


def _in_segments(state: torch.Tensor, inputs: ScanInputs, y: torch.Tensor) -> list[KernelCall]:
    """Return the scan of a long piece on a GPU that has processors for all of its segments."""
    processors = scan_kernels.processors
    scan_kernels.processors = lambda _: 1 << 20  # type: ignore[assignment]
    try:
        return ssd_prefill(state, inputs, _plan(2), y)
    finally:
        scan_kernels.processors = processors


def _delta(config: GatedDeltaConfig, dtype: torch.dtype, states: torch.dtype) -> Iterator[KernelCall]:
    H, G, V, K = config.value_heads, config.key_heads, config.value_dim, config.key_dim
    widths, by_channel = [G * K, G * K, H * V], config.gate_rank is not None
    all_widths = [sum(widths), H * V, H, H * config.decays]
    mixed, gate, b, a = _meta(ROWS, sum(all_widths), dtype=dtype).split(all_widths, -1)
    a = a.unflatten(1, (H, K)) if by_channel else a
    yield from _convolutions(mixed, config.conv_kernel, None, dtype)
    q, k, v = _meta(ROWS, sum(widths), dtype=dtype).split(widths, -1)
    rates, biases = _meta(H, dtype=WIDE), _meta(*a.shape[1:], dtype=WIDE)
    inputs = DeltaInputs(
        q.unflatten(1, (G, K)), k.unflatten(1, (G, K)), v.unflatten(1, (H, V)), a, b, rates, biases,
        config.beta_scale,
    )  # fmt: skip
    state, y = _slots(H, V, K, dtype=states), _meta(ROWS, H, V, dtype=dtype)
    yield update_call(state, inputs, _integers(3, ROWS), _integers(ROWS), y)
    ring = _meta(ROWS, 7, delta_width(H, V, G, K, config.decays), dtype=dtype)
    yield gated_delta_replay(state, inputs, _integers(3, ROWS), _integers(ROWS), _integers(3, ROWS), ring, y)
    yield prefill_call(state, inputs, _plan(128), y)
    normed = _meta(ROWS, H * V, dtype=dtype)
    if by_channel:
        yield rms_norm(y.flatten(1), _meta(H * V, dtype=dtype), 1e-5, None, normed, H)
        yield activate(_meta(ROWS, H * V, dtype=dtype), Function.SIGMOID, normed)
        return
    yield gated_norm(y.flatten(1), gate, _meta(V, dtype=dtype), 1e-6, H, normed, norm_first=True)


def _short_conv(config: ShortConvConfig, dtype: torch.dtype) -> Iterator[KernelCall]:
    x = _meta(ROWS, 3 * config.channels, dtype=dtype)
    bias = _meta(config.channels, dtype=WIDE) if config.bias else None
    yield from _convolutions(x, config.conv_kernel, bias, dtype, gated=True)


def _attention(config: AttentionConfig, dtype: torch.dtype) -> Iterator[KernelCall]:
    """Yield two decodes and two pieces, over pages of 16 positions in one layer of four."""
    heads, kv_heads, width = config.heads, config.kv_heads, config.head_dim
    gates = heads if config.output_gate else 0
    if config.latent is not None:
        yield from _latent(config, dtype)
        return
    joined = _meta(ROWS, heads + 2 * kv_heads + gates, width, dtype=dtype)
    query, key, value, *_ = joined.split([heads, kv_heads, kv_heads, gates], 1)
    kv = _meta(64, 4, 2, 16, kv_heads, width, dtype=dtype)[:, 1]
    both = joined[:, : heads + kv_heads]
    if config.qk_norm:
        normed = _meta(ROWS, (heads + kv_heads) * width, dtype=dtype)
        weight = _meta((heads + kv_heads) * width, dtype=dtype)
        yield rms_norm(both.flatten(1), weight, 1e-6, None, normed, heads + kv_heads)
        both = normed.unflatten(1, (-1, width))
        query, key = both.split([heads, kv_heads], 1)
    if half := config.rotated // 2:
        angles = _meta(ROWS, half, dtype=WIDE)
        yield rope_call(both, angles, angles)
    if config.output_gate:
        gate = joined[:, heads + 2 * kv_heads :].flatten(1)
        yield activate(gate, Function.SIGMOID, _meta(ROWS, heads * width, dtype=dtype))
    pages = _meta(ROWS, dtype=torch.int64)
    yield write_call(kv, key, value, pages, pages)
    yield from paged_attention(
        query, kv, config.scale, _attention_plan(), _meta(ROWS, heads, width, dtype=dtype)
    )


def _attention_plan() -> AttentionPlan:
    starts = np.array([0, 1, 2, 34, ROWS], np.int32)
    return AttentionPlan(
        groups=[],
        pieces=[],
        tokens=ROWS,
        decodes=2,
        longest_piece=32,
        page_table=_integers(4, 8),
        table_row=_integers(4),
        context_len=_integers(4),
        query_start=_integers(len(starts)),
    )


def _latent(config: AttentionConfig, dtype: torch.dtype) -> Iterator[KernelCall]:
    """Yield the norm of latent rows, their way into pages, and attention to rows that are keys and values."""
    assert config.latent is not None
    rows = _meta(ROWS, config.latent.rank, dtype=dtype)
    weight = _meta(config.latent.rank, dtype=dtype)
    yield rms_norm(rows, weight, 1e-6, None, torch.empty_like(rows))
    key, pages = _meta(ROWS, 1, config.head_dim, dtype=dtype), _meta(ROWS, dtype=torch.int64)
    kv = _meta(64, 4, 1, 16, 1, config.head_dim, dtype=dtype)[:, 1].expand(-1, 2, -1, -1, -1)
    yield write_call(kv, key, key, pages, pages)
    if attention_kernels.why_not(config.heads, config.kv_heads, config.head_dim, dtype):
        return
    query = _meta(ROWS, config.heads, config.head_dim, dtype=dtype)
    yield from paged_attention(query, kv, config.scale, _attention_plan(), torch.empty_like(query))


def _moe(config: MoeConfig, d: int, dtype: torch.dtype) -> Iterator[KernelCall]:
    """Yield calls with enough rows for blocks of each size."""
    activation = Activation.GATED_SILU if config.gated else Activation.SQUARED_RELU
    E, k, f, up = config.experts, config.experts_per_token, config.intermediate, activation.projections
    routing = Routing(
        top_k=k,
        scores="sigmoid" if config.scoring == "sigmoid" else "softmax",
        renormalise=config.normalize or config.scoring == "softmax_topk",
        scale=config.scale,
        groups=config.groups,
        kept_groups=config.groups_per_token,
    )
    for rows in (1, 2 * 16 * E // k, 4 * 64 * E // k):
        scores = _meta(rows, E + int(config.shared_gate), dtype=WIDE)
        logit = scores[:, -1] if config.shared_gate else None
        correction = _meta(E, dtype=WIDE) if config.scoring == "sigmoid" else None
        chosen, weights = _integers(rows, k), _meta(rows, k, dtype=WIDE)
        yield route_call(scores[:, :E], routing, correction, chosen, weights)
        shared_f, width = config.shared_intermediate, config.latent or d
        shared = None
        if shared_f and config.latent is None:
            matrices = _meta(up * shared_f, d, dtype=dtype), _meta(d, shared_f, dtype=dtype)
            shared = SharedExpert(*matrices, logit)
        x = _meta(rows, width, dtype=dtype)
        gate_up, down = _meta(E, up * f, width, dtype=dtype), _meta(E, width, f, dtype=dtype)
        yield from moe(x, chosen, weights, gate_up, down, activation, torch.empty_like(x), shared)
    if config.latent is not None and (shared_f := config.shared_intermediate):
        yield _feed_forward(MlpConfig(shared_f, config.activation, config.gated, config.bias), dtype)


def _feed_forward(config: MlpConfig, dtype: torch.dtype) -> KernelCall:
    """Return the activation; a gated one has its factor next to it, in one product."""
    function = FUNCTIONS[config.activation]
    if not config.gated:
        return activate(_meta(ROWS, config.intermediate, dtype=dtype), function, None)
    gate, up = _meta(ROWS, 2 * config.intermediate, dtype=dtype).chunk(2, 1)
    return activate(gate, function, up)


def _sample(vocabulary: int) -> list[KernelCall]:
    rows = 8
    strength = _meta(rows, dtype=WIDE)
    parameters = SampleParameters(
        temperature=strength,
        top_k=_integers(rows),
        top_p=strength,
        min_p=strength,
        words=_integers(rows, 2),
        counts_row=_integers(rows),
        repetition=strength,
        presence=strength,
        frequency=strength,
    )
    counts = PenaltyCounts(_integers(4, vocabulary), _meta(4, vocabulary, dtype=torch.bool))
    choice = TokenChoice(_meta(rows, dtype=torch.int64), _meta(rows, dtype=torch.bool))
    return sample(_meta(rows, vocabulary, dtype=WIDE), parameters, counts, _integers(rows), choice)
