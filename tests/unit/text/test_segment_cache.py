"""Texts in pieces: the very ids of the whole, and what was encoded once is not encoded again."""

import itertools
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from mamba_text import segment_cache
from mamba_text.quick_encoder import QuickEncoder
from mamba_text.segment_cache import NO_IDS, PIECE_BYTES, EncodedText, SegmentCache
from mamba_text.tokenizer import BATCH_FROM_CHARS, Tokenizer
from tiny_model import byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>"})
SPECIAL = [token.content for token in TOKENIZER.rust.get_added_tokens_decoder().values()]
TEXTS = st.lists(
    st.sampled_from([*SPECIAL, *(s[:-1] for s in SPECIAL), " ", "\n", "word ", "x" * 70])
    | st.text(max_size=9),
    max_size=12,
).map("".join)


@cache
def small_cache() -> SegmentCache:
    """Return one cache for all examples. Its encoder starts a thread, which a fork has not."""
    return SegmentCache(TOKENIZER, most_bytes=9000)


@settings(max_examples=150)
@given(TEXTS)
def test_the_ids_are_those_of_the_whole_text(text: str) -> None:
    encoded = small_cache().encode(text)
    assert encoded.token_ids.tolist() == TOKENIZER.encoding(text).ids
    assert encoded.chars == len(text)
    assert small_cache().held_bytes <= 9000


def turns(count: int) -> str:
    return "".join(f"<|im_start|>user\nturn {n} {'word ' * 40}<|im_end|>\n" for n in range(count))


def test_of_a_conversation_only_what_is_new_is_encoded() -> None:
    encoded: list[str] = []

    def counting(text: str) -> list[int]:
        encoded.append(text)
        return TOKENIZER.encoding(text).ids

    cache = SegmentCache(TOKENIZER, encoder=QuickEncoder(TOKENIZER, counting))
    cache.encode(turns(20))
    encoded.clear()
    assert cache.encode(turns(21)).token_ids.tolist() == TOKENIZER.encoding(turns(21)).ids
    assert encoded == [turns(21).removeprefix(turns(20))[: -len("<|im_end|>\n")]]


def test_a_stopped_encoding_has_the_ids_of_all_that_is_cached_and_goes_on_later() -> None:
    cache, whole = SegmentCache(TOKENIZER), turns(6)
    assert cache.encode(whole, stop=lambda _: True) == EncodedText(NO_IDS, 0)
    known = turns(4)
    cache.encode(known)
    encoded = cache.encode(whole, stop=lambda _: True)
    assert known == whole[: encoded.chars]
    assert encoded.token_ids.tolist() == TOKENIZER.encoding(known).ids
    cache.encode(whole)
    assert cache.encode(whole, stop=lambda _: True).token_ids.tolist() == TOKENIZER.encoding(whole).ids


@pytest.mark.parametrize("chars", [BATCH_FROM_CHARS - 1, BATCH_FROM_CHARS, 3000])
def test_ids_without_offsets_are_those_with_them(chars: int) -> None:
    text = ("plain words <|im_end|> \u2603" * 200)[:chars]
    assert TOKENIZER.token_ids(text) == TOKENIZER.encoding(text).ids


def test_memory_is_bounded() -> None:
    cache = SegmentCache(TOKENIZER, most_bytes=9000)
    for _ in range(3):
        cache.encode(turns(50))
        assert 0 < cache.held_bytes <= 9000


OVERLAPPING = ["[INST]", "<a[INST]>", "[INST][/INST]", "</s>", "<s>"]
"""Special tokens that begin with several characters and contain each other."""
GROWING = st.lists(
    st.sampled_from(
        [*OVERLAPPING, *(token[:-1] for token in OVERLAPPING), "<a", ">", "word ", "\n", "x" * 30]
    ),
    min_size=1,
    max_size=14,
)


@cache
def overlapping_tokenizer() -> Tokenizer:
    rust = byte_level_tokenizer()
    rust.add_special_tokens(OVERLAPPING)
    return Tokenizer(rust, {})


@cache
def cache_of_beginnings() -> SegmentCache:
    return SegmentCache(overlapping_tokenizer())


@settings(max_examples=150)
@example(["x" * 30, "<a", "[INST]", "x" * 30], [(1, ["<a[INST]>", "x" * 30])])
@example(["x" * 30, "<a", "[INST]"], [(3, [">", "x" * 30])])
@given(GROWING, st.lists(st.tuples(st.integers(0, 14), GROWING), max_size=4))
def test_texts_that_go_on_or_branch_have_the_ids_of_the_whole(
    parts: list[str], branches: list[tuple[int, list[str]]]
) -> None:
    tokenizer, segments = overlapping_tokenizer(), cache_of_beginnings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_cache, "LONG_TEXT", 10)
        patch.setattr(segment_cache, "OPEN_END", 3)
        patch.setattr(segment_cache, "MOST_BEGINNING_BYTES", 4000)
        texts = ["".join(parts[:end]) for end in range(1, len(parts) + 1)]
        texts += ["".join(parts[:kept] + others) for kept, others in branches]
        for text in texts:
            assert segments.encode(text).token_ids.tolist() == tokenizer.encoding(text).ids


def test_a_beginning_is_known_until_others_need_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_cache, "MOST_BEGINNING_BYTES", 400_000)
    cache = SegmentCache(TOKENIZER)
    first, second = cache.encode(turns(100)), cache.encode(turns(101))
    assert first.beginning is None
    assert second.beginning is first.next_beginning is not None
    assert turns(100).startswith(first.next_beginning.text)
    assert first.next_beginning.chars >= len(turns(98))
    assert (
        second.token_ids.tolist()[: len(first.next_beginning.token_ids)]
        == first.next_beginning.token_ids.tolist()
    )
    for number in range(9):
        cache.encode(f"<|im_start|>{number}{turns(100)}")
    assert cache.encode(turns(102)).beginning is None


def test_a_tokenizer_whose_special_tokens_look_around_is_not_cut() -> None:
    rust = byte_level_tokenizer()
    rust.add_special_tokens([AddedToken("<strip>", lstrip=True, rstrip=True)])
    tokenizer = Tokenizer(rust, {})
    text = "a  <strip>  b <|im_start|> " * 9
    cache = SegmentCache(tokenizer)
    assert cache.encode(text).token_ids.tolist() == tokenizer.encoding(text).ids
    assert cache.held_bytes == PIECE_BYTES + 4 * len(tokenizer.encoding(text).ids)


def test_special_tokens_may_begin_with_several_characters_and_contain_each_other() -> None:
    rust = byte_level_tokenizer()
    rust.add_special_tokens(["[INST]", "<a[INST]>", "[INST][/INST]"])
    tokenizer = Tokenizer(rust, {})
    cache = SegmentCache(tokenizer)
    pieces = ["<|im_start|>user\n", "[INST]one", "[INST][/INST]", "two<a[INST]>", "<a[INST] three"]
    for first, second, third in itertools.product(pieces, repeat=3):
        text = first + second + third
        assert cache.encode(text).token_ids.tolist() == tokenizer.encoding(text).ids
