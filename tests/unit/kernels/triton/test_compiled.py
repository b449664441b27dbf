"""Each kernel compiles for every GPU we name, at shapes of real models: no spill, 128 bits a load."""

from unittest import mock

import pytest
import torch

from compiled_kernel import CAPABILITIES, compiled
from mamba_kernels.activate import Function
from mamba_kernels.activate.triton import call as activate
from mamba_kernels.conv1d_prefill.triton import call as conv1d_prefill
from mamba_kernels.conv1d_update.triton import call as conv1d_update
from mamba_kernels.delta_replay.triton import call as gated_delta_replay
from mamba_kernels.gated_delta import DeltaInputs
from mamba_kernels.gated_delta.triton import prefill_call as gated_delta_prefill
from mamba_kernels.gated_delta.triton import update_call as gated_delta_update
from mamba_kernels.gated_norm.triton import call as gated_norm
from mamba_kernels.rms_norm.triton import call as rms_norm
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.short_conv.triton import prefill_call as short_conv_prefill
from mamba_kernels.short_conv.triton import update_call as short_conv_update
from mamba_kernels.slot_copy.triton import call as slot_copy
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.ssd_prefill import triton as scan_kernels
from mamba_kernels.ssd_prefill.triton import calls as ssd_prefill
from mamba_kernels.state_replay import delta_width, scan_width
from mamba_kernels.state_replay.triton import call as state_replay
from mamba_kernels.state_update.triton import call as state_update
from mamba_kernels.triton_support import KernelCall
from matrix_size import LARGE
from testmodels.chunks import PiecePlan, chunk_plan

META = torch.device("meta")
WIDE = torch.float32
HALF = torch.float16
ROWS = 16


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def scan(H: int, P: int, G: int, N: int) -> ScanInputs:
    """Return the rows of a mixer as its projection and its convolution leave them."""
    inner, shared = H * P, G * N
    x, B, C = meta(ROWS, inner + 2 * shared).split([inner, shared, shared], dim=-1)
    dt = meta(ROWS, 2 * inner + 2 * shared + H)[:, -H:]
    head = meta(H, dtype=WIDE)
    return ScanInputs(
        x.unflatten(1, (H, P)),
        dt,
        head,
        B.unflatten(1, (G, N)),
        C.unflatten(1, (G, N)),
        head,
        head,
        (0.0, 1e9),
    )


def state(H: int, P: int, N: int, dtype: torch.dtype = WIDE) -> torch.Tensor:
    return meta(4, 3, H, P, N, dtype=dtype)[:, 1]


def routes() -> torch.Tensor:
    return meta(3, ROWS, dtype=torch.int32)


def noise() -> torch.Tensor:
    return meta(ROWS, dtype=torch.int32)


def plan() -> ChunkPlan:
    return chunk_plan([PiecePlan(0, ROWS, -1, 1, {2: 2})], 128, device=META)


def norms() -> list[KernelCall]:
    y = meta(ROWS, 8192, dtype=WIDE)
    return [
        rms_norm(y[:, :4096], meta(4096), 1e-5, meta(ROWS, 4096), meta(ROWS, 4096)),
        gated_norm(y, meta(ROWS, 18560)[:, :8192], meta(8192), 1e-5, 8, meta(ROWS, 8192)),
        # The heads of queries and keys of Qwen3-Next, in a product with values and gates.
        rms_norm(
            meta(ROWS, 9216)[:, :4608],
            meta(4608, dtype=WIDE),
            1e-6,
            None,
            meta(ROWS, 4608),
            18,
        ),
        # Of Qwen3-Next's delta rule: 32 heads of 128, the gate behind q, k and v.
        gated_norm(
            meta(ROWS, 4096), meta(ROWS, 12352)[:, 8192:12288], meta(128), 1e-6, 32, meta(ROWS, 4096), True
        ),
    ]


def activations() -> list[KernelCall]:
    """Return the halves of a joined product, and a product alone."""
    gate, up = meta(ROWS, 2 * 8192).chunk(2, 1)
    return [activate(gate, function, up) for function in Function] + [
        activate(meta(ROWS, 15680), Function.SQUARED_RELU, None)
    ]


def copies() -> list[KernelCall]:
    arena = meta(4, 1 << 20, dtype=torch.uint8)
    return [slot_copy(arena, arena, meta(2, ROWS, dtype=torch.int64))]


def decode_steps() -> list[KernelCall]:
    out = meta(ROWS, 128, 80, dtype=WIDE)
    window = meta(4, 3, 10240)
    weight, bias = meta(4, 10240, dtype=WIDE), meta(10240, dtype=WIDE)
    return [
        state_update(state(128, 64, 128), scan(128, 64, 8, 128), routes(), noise(), out[..., :64]),
        state_update(state(128, 80, 128, HALF), scan(128, 80, 8, 128), routes(), noise(), out),
        short_conv_update(
            meta(ROWS, 3 * 2048),
            meta(3, 2048, dtype=WIDE),
            None,
            meta(4, 2, 2048),
            routes(),
            meta(ROWS, 2048),
        ),
        conv1d_update(meta(ROWS, 18560)[:, 8192:18432], weight, bias, window, routes(), meta(ROWS, 10240)),
    ]


def scans() -> list[KernelCall]:
    """Return a head size that is no power of two, and the widest state."""
    out = meta(ROWS, 128, 128, dtype=WIDE)
    odd, widest = (128, 80, 8, 128), (24, 128, 1, 256)
    launches = [(odd, HALF), (widest, WIDE), *([(odd, WIDE), (widest, HALF)] if LARGE else [])]
    whole = [
        call
        for (H, P, G, N), stored in launches
        for call in ssd_prefill(state(H, P, N, stored), scan(H, P, G, N), plan(), out[:, :H, :P])
    ]
    return [*whole, *segmented()]


def in_segments() -> list[KernelCall]:
    """Return the scan of a long piece of few heads on a GPU that has processors for all of its segments."""
    pieces, H, P, N = chunk_plan([PiecePlan(0, ROWS, -1, 1, {})], 1, device=META), 48, 64, 128
    with mock.patch.object(scan_kernels, "processors", return_value=1 << 20):
        return ssd_prefill(state(H, P, N), scan(H, P, 1, N), pieces, meta(ROWS, H, P))


def segmented() -> list[KernelCall]:
    """Return the calls that segments add, and all calls of a scan in segments."""
    contribution, _, whole = in_segments()
    return [contribution, whole]


def joins() -> list[KernelCall]:
    return in_segments()[1:2]


def convolutions() -> list[KernelCall]:
    x, weight = meta(ROWS, 18560)[:, 8192:18432], meta(4, 10240, dtype=WIDE)
    gated, narrow = meta(ROWS, 3 * 2048), meta(3, 2048, dtype=WIDE)
    return [
        conv1d_prefill(x, weight, meta(10240, dtype=WIDE), meta(4, 3, 10240), plan(), meta(ROWS, 10240)),
        short_conv_prefill(gated, narrow, None, meta(4, 2, 2048), plan(), meta(ROWS, 2048)),
    ]


def delta() -> tuple[torch.Tensor, DeltaInputs, torch.Tensor]:
    """Return state, rows and result of Qwen3-Next."""
    H, G, V, K = 32, 16, 128, 128
    q, k, v = meta(ROWS, 2 * G * K + H * V).split([G * K, G * K, H * V], 1)
    a, b = meta(ROWS, 2 * H).chunk(2, 1)
    head = meta(H, dtype=WIDE)
    rows = DeltaInputs(
        q.unflatten(1, (G, K)), k.unflatten(1, (G, K)), v.unflatten(1, (H, V)), a, b, head, head
    )
    return state(H, V, K), rows, meta(ROWS, H, V)


def delta_steps() -> list[KernelCall]:
    states, rows, out = delta()
    return [
        gated_delta_update(each, rows, routes(), noise(), out)
        for each in (states, state(32, 128, 128, torch.half))
    ]


def replays() -> list[KernelCall]:
    """Return steps with a ring, of a head size that is no power of two and of a state of float16 too."""
    out = meta(ROWS, 128, 80, dtype=WIDE)
    ring = meta(ROWS, 7, scan_width(128, 80, 8, 128))
    states, rows, delta_out = delta()
    delta_ring = meta(ROWS, 7, delta_width(32, 128, 16, 128))
    return [
        *(
            state_replay(
                state(128, 80, 128, kind), scan(128, 80, 8, 128), routes(), noise(), routes(), ring, out
            )
            for kind in (WIDE, HALF)
        ),
        gated_delta_replay(states, rows, routes(), noise(), routes(), delta_ring, delta_out),
    ]


def delta_scans() -> list[KernelCall]:
    states, rows, out = delta()
    return [gated_delta_prefill(states, rows, plan(), out)]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    "calls",
    [
        norms,
        activations,
        copies,
        joins,
        *(
            pytest.param(several, marks=pytest.mark.slow)
            for several in (decode_steps, convolutions, scans, delta_steps, replays, delta_scans)
        ),
    ],
)
def test_nothing_spills_and_memory_is_read_in_whole_vectors(calls, capability: int) -> None:
    for call in calls():
        kernel = compiled(call, capability)
        assert kernel.stack == 0, call.kernel
        assert kernel.widest_load == kernel.widest_store == 128, call.kernel
        assert kernel.tensor_cores == (calls in (scans, delta_scans))
