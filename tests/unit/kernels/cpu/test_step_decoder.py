"""A decode step in one call has the bits of its kernels called one by one, and leaves caches as they do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace

import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedMatrix, PackedWeight
from mamba_kernels.cpu.paged_decode import PagedDecoder
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.cpu.rope import RowRope
from mamba_kernels.cpu.row_operations import RowGate
from mamba_kernels.cpu.whole_steps.blocks import (
    AttentionBlock,
    Block,
    DeltaBlock,
    MambaBlock,
    MlpBlock,
    ParallelBlock,
)
from mamba_kernels.cpu.whole_steps.step_decoder import StepDecoder
from mamba_kernels.fp8_pages import Fp8Pages, Pages, rounded
from mamba_kernels.kv_write.reference import kv_write
from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.rope import frequencies, turns
from mamba_kernels.slot_plan import IntArray, SlotPlan
from mamba_kernels.state_replay import RingPlan, delta_width, scan_width
from mamba_kernels.stochastic_rounding import noise_words
from testmodels.chunks import CPU, ints, poisoned, strided_cache
from testmodels.delta_mixers import DeltaMixerRows
from testmodels.mixers import SLOTS, MixerRows

WIDTH, VOCABULARY, PAGE, WIDEST = 37, 50, 5, 14
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 9
ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (3, 12, -1)]
"""(slot_in, slot_out, track)"""
RING = ints([[0, 1, 3, -1, 2], [2, 0, 1, 0, 3], [0, 0, 1, 1, 1]])
"""Lanes, inputs in them, and which rows write their states."""
CONTEXTS = [1, 17, 64, 70, 5]
ROWS = ints([3, 0, 4, 1, 2])
"""Rows of the table of pages."""
TYPES = [
    (torch.float32, torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float32, torch.float16),
]
"""of the rows, of the residual stream, of the states"""


@dataclass(frozen=True)
class Decodes:
    """Decodes of rows, the counterpart of the protocol of that name."""

    slot_in: IntArray
    slot_out: IntArray
    decode_track: IntArray
    state_noise: IntArray
    table_row: IntArray
    context_len: IntArray
    kv_row: IntArray
    replay: None = None
    ring: IntArray | None = None


class Model:
    """Random blocks of every kind with their caches; the same numbers each time it is made."""

    def __init__(
        self,
        library: Library,
        dtype: torch.dtype,
        residual: torch.dtype,
        state: torch.dtype,
        pack: type,
        embedding_scale: float = 1.0,
    ) -> None:
        self._generator = torch.Generator().manual_seed(7)
        self._library, self.dtype, self.residual, self._pack = library, dtype, residual, pack
        self.state_dtype, self.embedding_scale = state, embedding_scale
        # With the scale, so that one run has both and another none.
        self.frequencies = None if embedding_scale == 1 else frequencies(100.0, 6, CPU)
        self.embedding: PackedMatrix = pack(self.random(VOCABULARY, WIDTH))
        self.mixers = [MixerRows(len(ROUTES), (6, 5, 9, 2, 4), dtype, state, norm=True) for _ in range(3)]
        self.delta = DeltaMixerRows(len(ROUTES), (6, 3, 5, 9, 4), dtype, state)
        self.rings = [
            self.random(4, 3, width) for width in [scan_width(6, 5, 2, 9)] * 3 + [delta_width(6, 5, 3, 9)]
        ]
        pages = [[1 + row * WIDEST + page for page in range(WIDEST)] for row in range(len(ROWS))]
        self.table = torch.tensor(pages, dtype=torch.int32)
        self.kv = strided_cache(len(ROWS) * WIDEST + 1, 2, PAGE, KV_HEADS, HEAD_DIM, dtype=dtype)
        self.kv.copy_(self.random(*self.kv.shape))
        self.beside = self.kv.clone()
        self.of_gated = Fp8Pages(*rounded(self.random(*self.kv.shape)))
        self.last_token = torch.tensor([3, 49, 16, 0, 31, 15], dtype=torch.int32)
        self.blocks: list[Block] = [
            self.mamba(self.mixers[0], self.rings[0]),
            MlpBlock(self.norm(), self.linear(WIDTH, 21, "relu2"), None, self.linear(21, WIDTH)),
            self.attention(self.kv),
            MlpBlock(
                self.norm(), self.linear(WIDTH, 100), self.linear(WIDTH, 100, "silu"),
                self.linear(100, WIDTH),
            ),
            self.mamba(self.mixers[1], self.rings[1]),
            ParallelBlock(self.mamba(self.mixers[2], self.rings[2]), self.attention(self.beside)),
            self.of_the_delta_rule(self.delta),
            self.gated_attention(self.of_gated),
        ]  # fmt: skip
        self.last_norm = self.norm()

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.dtype)

    def norm(self) -> RowNorm:
        return RowNorm(self._library, self.random(WIDTH), 1e-5)

    def linear(self, inputs: int, outputs: int, activation: str = "") -> PackedLinear:
        weight = self._pack(self.random(outputs, inputs) / inputs**0.5)
        return PackedLinear(self._library, weight, self.random(outputs), activation)

    def mamba(self, rows: MixerRows, ring: torch.Tensor) -> MambaBlock:
        H, P, N, G = rows.sizes
        projected = 2 * H * P + 2 * G * N + H
        return MambaBlock(
            self.norm(), self.linear(WIDTH, projected), MambaDecoder(self._library, rows.prepared()),
            self.linear(H * P, WIDTH), rows.window, rows.state, waiting=ring,
        )  # fmt: skip

    def of_the_delta_rule(self, rows: DeltaMixerRows) -> DeltaBlock:
        return DeltaBlock(
            self.norm(), self.linear(WIDTH, sum(rows.widths)), rows.calls(self._library),
            self.linear(rows.values, WIDTH), rows.window, rows.state, waiting=self.rings[3],
        )  # fmt: skip

    def gated_attention(self, kv: Pages) -> AttentionBlock:
        """Return attention with norms of queries and keys, and a gated output; its pages are FP8."""
        joined = self.linear(WIDTH, (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM)
        of_queries, of_keys = (
            RowNorm(self._library, self.random(HEAD_DIM).float() + 1, 1e-6, self.dtype) for _ in range(2)
        )
        return replace(self.attention(kv), in_proj=joined, head_norms=(of_queries, of_keys), output_gate=True)

    def attention(self, kv: Pages) -> AttentionBlock:
        decoder = PagedDecoder(
            self._library, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5
        )
        joined = self.linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        return AttentionBlock(self.norm(), joined, decoder, self.linear(HEADS * HEAD_DIM, WIDTH), kv)

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        delta = self.delta
        return (
            self.kv,
            self.beside,
            self.of_gated.numbers,
            self.of_gated.scales,
            delta.window,
            delta.state,
            *(part for each in self.mixers for part in (each.window, each.state)),
            *self.rings,
        )

    def decodes(self, *, ring: bool = False) -> Decodes:
        slot_in, slot_out, track = (ints(each) for each in zip(*ROUTES, strict=True))
        noise = noise_words(ROWS, ints(CONTEXTS)) if self.state_dtype == torch.float16 else ints([])
        last = ints(CONTEXTS) - 1
        pages: IntArray = self.table.numpy()[ROWS, last // PAGE]
        rows = Decodes(slot_in, slot_out, track, noise, ROWS, ints(CONTEXTS), pages * PAGE + last % PAGE)
        return replace(rows, ring=RING if ring else None)

    def one_call(self, most_rows: int = 8, *, ring: bool = False) -> torch.Tensor:
        """Return the hidden states [n, d] of the tested call."""
        decoder = StepDecoder(
            self._library, embedding=self.embedding, blocks=self.blocks, norm=self.last_norm,
            embedding_scale=self.embedding_scale, frequencies=self.frequencies,
            residual_dtype=self.residual,
            page_table=self.table, last_token=self.last_token, most_rows=most_rows,
        )  # fmt: skip
        return decoder(self.decodes(ring=ring))

    def one_by_one(self, *, ring: bool = False) -> torch.Tensor:
        """Compute the same by each kernel's own call."""
        given, lanes = self.decodes(), RingPlan(CPU, RING) if ring else None
        routes = SlotPlan.build(
            given.slot_in,
            given.slot_out,
            given.decode_track,
            CPU,
            given.state_noise if len(given.state_noise) else None,
        )
        attention = AttentionPlan.build(
            decodes=len(ROWS), query_start=ints(range(len(ROWS) + 1)), context_len=given.context_len,
            page_table=self.table, table_row=ROWS, page_size=PAGE, device=CPU, gathered=False,
        )  # fmt: skip
        page, offset = (
            torch.from_numpy(given.kv_row).long() // PAGE,
            torch.from_numpy(given.kv_row).long() % PAGE,
        )
        x = self.embedding.rows(self.last_token[torch.from_numpy(ROWS).long()].long()).to(self.residual)
        x = x * self.embedding_scale
        added = None

        def mixed(block: MambaBlock | DeltaBlock | AttentionBlock, rows: torch.Tensor) -> torch.Tensor:
            inner = block.in_proj(rows)
            if isinstance(block, MambaBlock):
                out = poisoned(len(rows), block.out_proj.weight.inputs, dtype=self.dtype)
                block.mixer(inner, block.window, block.state, routes, out, lanes, block.waiting)
                return block.out_proj(out)
            if isinstance(block, DeltaBlock):
                out = poisoned(len(rows), block.out_proj.weight.inputs, dtype=self.dtype)
                block.mixer.decode(inner, block.window, block.state, routes, out, lanes, block.waiting)
                return block.out_proj(out)
            heads = inner.unflatten(1, (-1, HEAD_DIM))
            gate = inner[:, -HEADS * HEAD_DIM :].clone()
            if block.output_gate:
                heads = heads[:, :-HEADS].clone()
            if block.head_norms is not None:
                for norm, first, end in zip(
                    block.head_norms, (0, HEADS), (HEADS, HEADS + KV_HEADS), strict=True
                ):
                    some = heads[:, first:end].reshape(-1, HEAD_DIM)
                    heads[:, first:end] = norm(some).view(len(rows), -1, HEAD_DIM)
            if self.frequencies is not None:
                places = torch.from_numpy(given.context_len) - 1
                RowRope(self._library)(heads[:, :-KV_HEADS], *turns(places, self.frequencies))
            parts = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
            kv_write(block.kv, parts[1], parts[2], page, offset)
            out = poisoned(len(rows), HEADS, HEAD_DIM, dtype=self.dtype)
            block.attention(parts[0], block.kv, attention, out)
            if block.output_gate:
                RowGate(self._library)(out.flatten(1), gate)
            return block.out_proj(out.flatten(1))

        for block in self.blocks:
            rows = block.norm(x, added)
            match block:
                case MambaBlock() | DeltaBlock() | AttentionBlock():
                    added = mixed(block, rows)
                case ParallelBlock():
                    added = mixed(block.mamba, rows) + mixed(block.attention, rows)
                case MlpBlock(gate_proj=None):
                    added = block.out_proj(block.in_proj(rows))
                case MlpBlock(gate_proj=gate):
                    assert gate is not None
                    added = block.out_proj(gate(rows) * block.in_proj(rows))
        return self.last_norm(x, added)


@contextmanager
def on_threads(library: Library, count: int) -> Iterator[None]:
    library.set_threads(count)
    yield
    library.set_threads(1)


@pytest.mark.parametrize(
    ("pack", "scale"), [(PackedWeight, 1.0), (PackedWeight, 54.5), (QuantizedWeight, 0.3)]
)
@pytest.mark.parametrize(("dtype", "residual", "state"), TYPES)
def test_it_has_the_bits_of_the_kernels_one_by_one(
    library: Library,
    threads: int,
    dtype: torch.dtype,
    residual: torch.dtype,
    state: torch.dtype,
    pack: type,
    scale: float,
) -> None:
    together, apart = (Model(library, dtype, residual, state, pack, scale) for _ in range(2))
    with on_threads(library, threads):
        got = together.one_call()
    expected = apart.one_by_one()
    assert expected.isfinite().all()
    assert torch.equal(got, expected)
    for mine, true in zip(together.caches, apart.caches, strict=True):
        torch.testing.assert_close(mine, true, rtol=0, atol=0, equal_nan=True)
    assert together.mixers[0].state.shape[0] == SLOTS
    assert together.mixers[0].state[[0, 5, 6, 13]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.parametrize(("dtype", "residual", "state"), TYPES)
def test_a_step_with_rings_has_the_bits_of_the_kernels_one_by_one(
    library: Library, threads: int, dtype: torch.dtype, residual: torch.dtype, state: torch.dtype
) -> None:
    together, apart = (Model(library, dtype, residual, state, PackedWeight) for _ in range(2))
    with on_threads(library, threads):
        got = together.one_call(ring=True)
    assert torch.equal(got, apart.one_by_one(ring=True))
    for mine, true in zip(together.caches, apart.caches, strict=True):
        torch.testing.assert_close(mine, true, rtol=0, atol=0, equal_nan=True)
    rings = Model(library, dtype, residual, state, PackedWeight).rings
    for ring, before in zip(together.rings, rings, strict=True):
        # Rows 0 and 1 leave their inputs behind those in their lanes, which hold two and none.
        assert (ring != before).any(2).nonzero().tolist() == [[0, 2], [1, 0]]


def test_a_step_takes_its_rows_and_tokens_anew_each_time(library: Library) -> None:
    """Check that an earlier step's additional rows and other tokens have no effect."""
    model, other = (Model(library, *TYPES[0], PackedWeight) for _ in range(2))
    decoder = StepDecoder(
        library, embedding=model.embedding, blocks=model.blocks, norm=model.last_norm,
        residual_dtype=model.residual, page_table=model.table, last_token=model.last_token, most_rows=5,
    )  # fmt: skip
    decoder(model.decodes())
    for mine, fresh in zip(model.caches, other.caches, strict=True):
        mine.copy_(fresh)
    model.last_token[3] = other.last_token[3] = 48
    given = other.decodes()
    first = Decodes(*(each[:2] for each in astuple(given)[:-2]))
    expected = other.one_by_one()[:2]
    assert torch.equal(decoder(first), expected)


def test_every_instruction_set_gives_the_same_bits(
    assert_products_have_same_bits: Callable[..., None],
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        model = Model(library, *TYPES[1], PackedWeight)
        return model.one_call(), *model.caches

    assert_products_have_same_bits(run)
