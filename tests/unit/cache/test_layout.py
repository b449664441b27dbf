"""Byte layout: nothing overlaps, nothing overflows."""

import itertools

from mamba_server.cache.layout import CacheLayout


def layout(slabs: int = 3, **changes: int) -> CacheLayout:
    sizes = {
        "recurrent_layers": 3, "ssm_bytes": 4096, "conv_bytes": 72, "attention_layers": 2,
        "page_layer_bytes": 1024, "page_size": 4, "slab_bytes": 14336, "slabs": slabs, **changes,
    }  # fmt: skip
    return CacheLayout(**sizes)


def test_the_parts_of_a_state_lie_side_by_side_within_a_slab() -> None:
    made = layout()
    spans = [(made.ssm_offset(i), made.ssm_offset(i) + made.ssm_bytes) for i in range(3)]
    spans += [(made.conv_offset(i), made.conv_offset(i) + made.conv_bytes) for i in range(3)]
    assert spans[0][0] == 0
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= made.slab_bytes


def test_a_slab_holds_whole_pages_only() -> None:
    assert layout().pages_per_slab == 7
    assert layout(slab_bytes=15000).pages_per_slab == 7


def test_a_pure_recurrent_model_has_no_pages() -> None:
    made = layout(attention_layers=0, page_layer_bytes=0)
    assert (made.page_bytes, made.pages_per_slab) == (0, 0)


def test_an_arena_beyond_two_gigabytes_is_addressed_in_full() -> None:
    made = layout(slabs=2_000_000)
    last = (made.slabs - 1) * made.slab_bytes + made.conv_offset(2)
    assert made.arena_bytes == 28_672_000_000
    assert last > 2**31
    assert 0 < made.arena_bytes - last < made.slab_bytes
