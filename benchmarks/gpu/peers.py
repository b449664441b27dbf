"""The same work by other libraries, where they are installed: torch's attention, mamba_ssm, FLA."""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.gpu.operator_calls import OperatorCall
from torch.nn.attention import SDPBackend, sdpa_kernel

from mamba_kernels.bench import peers as mamba_ssm_peers

Work = Callable[[], object]


def peers_of(call: OperatorCall) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Yield names of peers, and what prepares the work of a call for each. Preparing raises ImportError."""
    match call.operator:
        case "state_update":
            yield "mamba_ssm", lambda: _mamba_update(call)
        case "ssd_prefill":
            yield "mamba_ssm", lambda: _mamba_prefill(call)
        case "paged_attention":
            backends = {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cudnn": SDPBackend.CUDNN_ATTENTION}
            for name, backend in backends.items():
                yield name, partial(_torch_attention, call, backend)
        case "gated_delta_prefill":
            yield "fla", lambda: _fla_delta(call)


def allow_bare_mamba_ssm() -> None:
    """Let Triton files of mamba_ssm be imported without the package's `__init__`, which needs CUDA code."""
    if "mamba_ssm" in sys.modules:
        return
    for folder in map(Path, sys.path):
        if (folder / "mamba_ssm" / "ops" / "triton").is_dir():
            for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.utils"):
                module = types.ModuleType(name)
                module.__path__ = [str(folder / name.replace(".", "/"))]
                sys.modules[name] = module
            return


def _mamba_update(call: OperatorCall) -> Work:
    allow_bare_mamba_ssm()
    state, inputs, plan = call.arguments[:3]
    # The peer has no slots: its states lie side by side.
    states = state[torch.tensor(plan.target_slots, device=state.device)].contiguous()
    return mamba_ssm_peers.state_update(states, inputs)


def _mamba_prefill(call: OperatorCall) -> Work:
    allow_bare_mamba_ssm()
    _, inputs, plan = call.arguments[:3]
    lengths = {end - start for start, end in zip(plan.piece_start[:-1], plan.piece_start[1:], strict=True)}
    if len(lengths) > 1:
        raise ImportError("the peer takes pieces of one length")
    return mamba_ssm_peers.ssd_prefill(inputs, len(plan.piece_start) - 1)


def _torch_attention(call: OperatorCall, backend: SDPBackend) -> Work:
    query, kv, scale, plan = call.arguments[:4]
    contexts = plan.context_len.tolist()
    if len(set(contexts)) > 1:
        raise ImportError("the peer takes contexts of one length")
    sequences, context = len(contexts), contexts[0]
    heads, width = query.shape[1:]
    kv_heads = kv.shape[3]
    new = len(query) // sequences
    queries = query.reshape(sequences, new, heads, width).transpose(1, 2).contiguous()
    keys, values = (
        torch.randn(sequences, kv_heads, context, width, dtype=kv.dtype, device=kv.device) for _ in range(2)
    )
    if new > 1 and new < context:
        raise ImportError("the peer's causal mask wants as many queries as keys")
    causal = new > 1

    def run() -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                queries, keys, values, is_causal=causal, scale=scale, enable_gqa=True
            )

    return run


def _fla_delta(call: OperatorCall) -> Work:
    module = importlib.import_module("fla.ops.gated_delta_rule")
    _, inputs, plan = call.arguments[:3]
    if len(plan.piece_start) != 2:
        raise ImportError("compared with one prompt alone")
    shared = inputs.v.shape[1] // inputs.q.shape[1]
    q, k = (part.repeat_interleave(shared, 1)[None].contiguous() for part in (inputs.q, inputs.k))
    v = inputs.v[None].contiguous()
    g = (inputs.A * F.softplus(inputs.a.float() + inputs.dt_bias))[None].contiguous()
    beta = inputs.b.float().sigmoid()[None].contiguous()

    def run() -> object:
        return module.chunk_gated_delta_rule(
            q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True
        )

    return run
