"""Decoding in one call equals the operators it joins, computed in float64, wherever states lie."""

import pytest
import torch

from mamba_kernels.conv1d_update import conv1d_update
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_decode import MambaDecoder, MixerWeights
from mamba_kernels.gated_norm import gated_norm
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_update import state_update
from testmodels.chunks import CPU, ints, strided_cache

ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (3, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""
LIMIT = (0.01, 3.0)
EPS = 1e-5


class Mixer:
    """Weights, rows and states of a mixer; the same numbers in every type."""

    def __init__(
        self, H: int, P: int, N: int, G: int, K: int, dtype: torch.dtype, state: torch.dtype, *, norm: bool
    ) -> None:
        self.sizes = (H, P, N, G)
        generator = torch.Generator().manual_seed(H + N)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        C = H * P + 2 * G * N
        self.weights = MixerWeights(
            conv_weight=rand(K, C),
            conv_bias=rand(C) if norm else None,
            A=-rand(H).exp(),
            D=rand(H),
            dt_bias=rand(H),
            norm=rand(H * P).to(dtype) if norm else None,
        )
        self.projected = rand(len(ROUTES), H * P + C + H + 5).to(dtype)[:, : H * P + C + H]
        self.window = strided_cache(14, K - 1, C, dtype=dtype)
        self.state = strided_cache(14, H, P, N, dtype=state)
        for slot in (1, 2, 3, 4):
            self.window[slot] = rand(K - 1, C).to(dtype)
            self.state[slot] = rand(H, P, N).to(state)

    def decoder(self, library: Library) -> MambaDecoder:
        _, P, N, G = self.sizes
        return MambaDecoder(
            library, self.weights, head_dim=P, state_size=N, groups=G, dt_limit=LIMIT, norm_eps=EPS,
            norm_groups=G,
        )  # fmt: skip

    def run(self, library: Library, rows: slice = slice(None)) -> torch.Tensor:
        H, P = self.sizes[:2]
        routes = ROUTES[rows]
        out = torch.full((len(routes), H * P), torch.nan, dtype=self.projected.dtype)
        self.decoder(library)(self.projected[rows], self.window, self.state, plan(routes), out)
        return out

    def expected(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Output, windows and states by the operators in float64; x, B, C rounded as the rows are."""
        H, P, N, G = self.sizes
        window, state, rows = self.window.double(), self.state.double(), self.projected.double()
        w = self.weights
        gate, inputs, dt = rows.split([H * P, H * P + 2 * G * N, H], dim=1)
        bias = None if w.conv_bias is None else w.conv_bias.double()
        mixed = conv1d_update(inputs, w.conv_weight.double(), bias, window, plan(ROUTES))
        mixed = mixed.to(self.projected.dtype).double()
        x, B, C = mixed.split([H * P, G * N, G * N], dim=1)
        y = torch.empty(len(ROUTES), H, P, dtype=torch.float64)
        scan = ScanInputs(
            x.unflatten(1, (H, P)), dt, w.A.double(), B.unflatten(1, (G, N)), C.unflatten(1, (G, N)),
            w.D.double(), w.dt_bias.double(), LIMIT,
        )  # fmt: skip
        state_update(state, scan, plan(ROUTES), y)
        norm = None if w.norm is None else w.norm.double()
        return gated_norm(y.flatten(1), gate, norm, EPS, G), window, state


def plan(routes: list[tuple[int, int, int]]) -> SlotPlan:
    sources, targets, tracks = zip(*routes, strict=True)
    return SlotPlan.build(ints(sources), ints(targets), ints(tracks), CPU)


SIZES = [(4, 32, 128, 1, 4), (6, 5, 9, 2, 4), (1, 63, 100, 1, 2), (8, 1, 16, 8, 3), (3, 7, 257, 3, 1)]
TYPES = [
    (torch.float32, torch.float32, 2e-5, 2e-5),
    (torch.bfloat16, torch.float32, 2e-2, 1e-2),
    (torch.float32, torch.float16, 2e-3, 2e-3),
]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("dtype", "state", "tolerance", "state_tolerance"), TYPES)
@pytest.mark.parametrize(("H", "P", "N", "G", "K"), SIZES)
def test_a_step_equals_convolution_recurrence_and_norm(
    library: Library, H: int, P: int, N: int, G: int, K: int, dtype: torch.dtype, state: torch.dtype,
    tolerance: float, state_tolerance: float, norm: bool,
) -> None:  # fmt: skip
    mixer = Mixer(H, P, N, G, K, dtype, state, norm=norm)
    expected, window, states = mixer.expected()
    before = mixer.state.clone()
    out = mixer.run(library).double()
    # Without the norm the output is as large as its terms, of which some cancel.
    scale = max(1.0, float(expected.abs().max())) if not norm else 4.0
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance * scale)
    assert torch.equal(mixer.window.double().nan_to_num(7), window.nan_to_num(7))
    torch.testing.assert_close(
        mixer.state.double(), states, rtol=state_tolerance, atol=state_tolerance * 4, equal_nan=True
    )
    for source, target, track in ROUTES:
        if track >= 0:
            assert torch.equal(mixer.state[track], mixer.state[target])
            assert torch.equal(mixer.window[track], mixer.window[target])
        if source not in (-1, target):
            assert torch.equal(mixer.state[source], before[source]), "a moved state leaves its source alone"
    assert mixer.state[[0, 5, 6, 13]].isnan().all(), "slots nobody named are left alone"


def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int
) -> None:
    def made() -> Mixer:
        return Mixer(48, 32, 128, 1, 4, torch.bfloat16, torch.float32, norm=True)

    together, alone = made(), made()
    library.set_threads(threads)
    out = together.run(library)
    library.set_threads(1)
    for row in range(len(ROUTES)):
        assert torch.equal(alone.run(library, slice(row, row + 1))[0], out[row])
    assert torch.equal(alone.state.nan_to_num(7), together.state.nan_to_num(7))
    assert torch.equal(alone.window.nan_to_num(7), together.window.nan_to_num(7))


def test_a_state_that_is_not_a_number_shows_in_its_own_row_alone(library: Library) -> None:
    mixer = Mixer(4, 32, 128, 1, 4, torch.bfloat16, torch.float32, norm=True)
    mixer.state[2, 3, 31, 127] = torch.nan
    assert mixer.run(library).isnan().any(1).tolist() == [False, True, False, False, False]
