"""The hash of a prefix is the same wherever and however it is computed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mamba_prefix.page_chain import PageChain, PageMixer, PageTerms


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_the_hashes_are_the_same_on_every_machine_and_for_ever() -> None:
    chain = PageChain(4, "model")
    known = chain.hashes(np.arange(12, dtype=np.int32), "salt").tolist()
    assert known == [18105120384367294191, 17449255332379828447, 17532884023970457778]
    assert PageMixer(4).pages(np.arange(8, dtype=np.int32)).tolist() == [
        3745689473242671677,
        301956739806603952,
    ]


def by_definition(page_size: int, fingerprint: str, token_ids: list[int], salt: str) -> list[int]:
    """Compute the same with Python's integers, one token at a time."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    running = PageChain(page_size, fingerprint).start(salt)
    out = []
    for page in range(len(token_ids) // page_size):
        total = 0
        for place in range(page_size):
            weight = mix(((place + 1) * golden) & mask) | 1
            total += token_ids[page * page_size + place] * weight
        running += mix((mix(total & mask) + (page + 1) * golden) & mask)
        out.append(mix(running & mask) or 1)
    return out


@given(
    npst.arrays(np.int32, st.integers(0, 50), elements=st.integers(-(2**31), 2**31 - 1)),
    st.integers(1, 9),
    st.text(max_size=5),
)
def test_the_arrays_compute_what_the_definition_says(ids: np.ndarray, page_size: int, salt: str) -> None:
    chain = PageChain(page_size, "model")
    assert chain.hashes(ids, salt).tolist() == by_definition(page_size, "model", ids.tolist(), salt)


@given(
    npst.arrays(np.int32, st.integers(0, 40), elements=st.integers(0, 200_000)),
    st.lists(st.integers(0, 10), max_size=3),
)
def test_a_prefix_in_pieces_has_the_hash_of_the_whole(ids: np.ndarray, cuts: list[int]) -> None:
    chain = PageChain(4, "model")
    whole = chain.hashes(ids, "s")
    places = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    running = chain.start("s")
    for first, last in itertools.pairwise(places):
        running = chain.extend(running, first, ids[first * 4 : last * 4])
        assert chain.hash_of(running) == whole[last - 1]


def test_another_salt_model_page_size_order_or_page_is_another_prefix() -> None:
    ids = np.arange(64, dtype=np.int32)
    swapped = np.concatenate((ids[16:32], ids[:16], ids[32:]))
    changed = ids.copy()
    changed[0] += 1
    seen = [
        PageChain(16, "a").hashes(ids, ""),
        PageChain(16, "a").hashes(ids, "x"),
        PageChain(16, "b").hashes(ids, ""),
        PageChain(16, "a").hashes(swapped, "")[1:],
        PageChain(16, "a").hashes(changed, ""),
        PageChain(16, "a").hashes(np.zeros(64, np.int32), ""),
        PageChain(8, "a").hashes(ids, ""),
    ]
    everything = np.concatenate(seen)
    assert len(np.unique(everything)) == len(everything)


def test_a_fingerprint_cannot_pass_for_a_salt() -> None:
    assert PageChain(16, "ab").start("c") != PageChain(16, "a").start("bc")


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32])
def test_only_whole_pages_have_a_hash(length: int) -> None:
    assert len(PageChain(16, "").hashes(np.zeros(length, np.int32), "")) == length // 16


def test_random_prefixes_do_not_collide() -> None:
    rng = np.random.default_rng(0)
    chain = PageChain(2, "model")
    hashes = chain.hashes(rng.integers(0, 3, 200_000).astype(np.int32), "")
    assert len(np.unique(hashes)) == len(hashes)
    ones = np.unpackbits(hashes.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.001


@given(
    npst.arrays(np.int32, st.integers(0, 60), elements=st.integers(-(2**31), 2**31 - 1)),
    npst.arrays(np.int32, st.integers(0, 60), elements=st.integers(-(2**31), 2**31 - 1)),
    st.integers(0, 60),
    st.lists(st.integers(1, 9), max_size=3),
    st.integers(1, 9),
)
def test_terms_of_a_shared_beginning_give_the_hashes_of_the_whole(
    first: np.ndarray, rest: np.ndarray, shared: int, computed: list[int], page_size: int
) -> None:
    shared = min(shared, len(first))
    earlier, chain = PageTerms(first), PageChain(page_size, "model")
    for size in computed:
        earlier.of(PageChain(size, "another model"))
    whole = np.concatenate((first[:shared], rest))

    terms = PageTerms(whole, earlier.of_first(shared)).of(chain)

    assert chain.hashes_of_terms(terms, "salt").tolist() == chain.hashes(whole, "salt").tolist()
