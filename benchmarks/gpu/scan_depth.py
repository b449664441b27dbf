"""Growth of the scan's error with the length of a prompt: bfloat16 products against float64 sums."""

from typing import Any

import numpy as np
import torch

from mamba_kernels.dispatch.operators import triton_operators
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.ssd_prefill import ChunkPlan, ssd_prefill

CHUNK = 64
LIMIT = (0.0, float("inf"))


def error_by_depth(tokens: int, device: torch.device, *, small: bool) -> dict[str, float]:
    """Scan one prompt; return the relative RMS of y, of its last chunk, and of the state."""
    H, P, N = (1, 16, 16) if small else (8, 64, 128)
    generator = torch.Generator(device).manual_seed(tokens)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    x, dt = random(tokens, H, P).bfloat16(), random(tokens, H).bfloat16()
    B, C = random(tokens, 1, N).bfloat16(), random(tokens, 1, N).bfloat16()
    # Some heads forget at once, some nearly never, as trained models have it.
    A = -torch.exp(torch.linspace(-6, 2, H, device=device))
    parts = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": random(H)}
    parts["dt_bias"] = torch.full((H,), -3.0, device=device)
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    for operator, wide in ((triton_operators().ssd_prefill, False), (ssd_prefill, True)):
        inputs: dict[str, Any] = {name: part.double() if wide else part for name, part in parts.items()}
        kind = torch.float64 if wide else torch.float32
        state = torch.zeros(2, H, P, N, dtype=kind, device=device)
        out = torch.full((tokens, H, P), torch.nan, dtype=kind, device=device)
        operator(state, ScanInputs(**inputs, dt_limit=LIMIT), _plan(tokens, device), out)
        results.append((out.double(), state[1].double()))
    (y, state), (true_y, true_state) = results
    return {
        "relative_rms": _relative(y, true_y),
        "last_chunk_relative_rms": _relative(y[-CHUNK:], true_y[-CHUNK:]),
        "state_relative_rms": _relative(state, true_state),
    }


def _relative(got: torch.Tensor, true: torch.Tensor) -> float:
    far: torch.Tensor = (got - true).square().mean().sqrt() / true.square().mean().sqrt()
    return far.nan_to_num(nan=float("inf")).item()


def _plan(tokens: int, device: torch.device) -> ChunkPlan:
    starts = np.arange(0, tokens, CHUNK, dtype=np.int32)
    zeros = np.zeros_like(starts)
    return ChunkPlan.build(
        chunk_start=starts,
        chunk_len=np.minimum(CHUNK, tokens - starts).astype(np.int32),
        chunk_sequence=zeros,
        chunk_rank=np.arange(len(starts), dtype=np.int32),
        chunk_track=zeros - 1,
        slot_in=np.array([-1], np.int32),
        slot_out=np.array([1], np.int32),
        piece_start=np.array([0, tokens], np.int32),
        chunk_size=CHUNK,
        device=device,
    )
