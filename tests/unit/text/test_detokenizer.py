"""Incremental text against the text of all ids at once, over scripts whose characters span tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from mamba_text.detokenizer import MAX_PENDING, REPLACEMENT, Detokenizer
from mamba_text.tokenizer import Tokenizer
from tiny_model import byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>", "eos_token": "</s>"})
SCRIPTS = [
    "plain English text, with punctuation.",
    "Übermäßige Größe, naïve café",
    "Съешь же ещё этих мягких французских булок",
    "色は匂へど 散りぬるを",
    "天地玄黃,宇宙洪荒。",
    "키스의 고유조건은 입술끼리",
    "สวัสดีชาวโลก",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "🎉👩‍👩‍👧‍👦🏳️‍🌈👍🏽 and text",
    "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 \U0001f9ff",
    "line\nbreaks\r\n\ttabs\x00nul",
]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encoding(text).ids


def stream(ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, prompt or [])
    return [*(detokenizer.feed(item) for item in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", SCRIPTS)
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(stream(ids_of(text))) == text


@pytest.mark.parametrize("text", SCRIPTS)
def test_no_piece_holds_a_part_of_a_character(text: str) -> None:
    assert all(REPLACEMENT not in piece for piece in stream(ids_of(text)))


@given(st.text(max_size=40))
def test_any_text_comes_back_whole(text: str) -> None:
    text = text.replace(REPLACEMENT, "")
    assert "".join(stream(ids_of(text))) == text


@given(st.text(min_size=1, max_size=12), st.text(max_size=12))
def test_text_after_a_prompt_is_what_the_whole_adds(before: str, after: str) -> None:
    before, after = before.replace(REPLACEMENT, "x"), after.replace(REPLACEMENT, "x")
    prompt = ids_of(before)
    assert "".join(stream(ids_of(after), prompt)) == after


def test_an_incomplete_last_character_is_dropped_and_the_rest_kept() -> None:
    ids = ids_of("ok 🎉")
    pieces = stream(ids[:-1])
    assert "".join(pieces) == "ok "


def test_a_whole_character_held_with_a_broken_one_comes_at_the_end() -> None:
    ids = ids_of("世") + ids_of("界")[:1]
    assert "".join(stream(ids)) == "世"


def test_special_tokens_are_no_text() -> None:
    rust = TOKENIZER.rust
    ids = [rust.token_to_id("<|im_start|>"), *ids_of("hello"), rust.token_to_id("</s>")]
    assert "".join(stream(ids)) == "hello"


def test_broken_bytes_do_not_hold_text_back_for_ever() -> None:
    broken = ids_of("世")[0]
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.feed(broken) for _ in range(MAX_PENDING)]
    assert any(pieces)
    assert "".join(detokenizer.feed(item) for item in ids_of(" fine")).endswith("fine")


def test_text_follows_broken_bytes_at_once() -> None:
    broken = ids_of("世")[0]
    detokenizer = Detokenizer(TOKENIZER)
    detokenizer.feed(broken)
    assert detokenizer.feed(ids_of("a")[0]) == REPLACEMENT + "a"


def test_many_special_tokens_in_a_row_are_no_trouble() -> None:
    end = TOKENIZER.rust.token_to_id("</s>")
    assert "".join(stream([end] * (3 * MAX_PENDING) + ids_of("done"))) == "done"


def test_ids_that_the_tokenizer_does_not_know_are_no_text_and_hold_nothing_back() -> None:
    beyond = TOKENIZER.rust.get_vocab_size() + 7
    first, *rest = ids_of("one two")
    detokenizer = Detokenizer(TOKENIZER, [beyond, 2])
    assert detokenizer.feed(first) == "o"
    assert detokenizer.feed(beyond) == ""
    assert "".join(detokenizer.feed(item) for item in rest) == "ne two"
    assert detokenizer.flush() == ""


BYTES = [TOKENIZER.rust.token_to_id(token) for token in pre_tokenizers.ByteLevel.alphabet()]
LEADS = [item for item in BYTES if TOKENIZER.piece(item).raw[0] >= 0xC2]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(LEADS), max_size=MAX_PENDING // 2),
            st.text(alphabet="a \u00e9\u4e16\U0001f389\u0e2a", min_size=1, max_size=5),
        ),
        max_size=6,
    )
)
def test_no_whole_character_is_lost_between_broken_ones(parts: list[tuple[list[int], str]]) -> None:
    ids = [item for broken, text in parts for item in (*broken, *ids_of(text))]
    shown = "".join(stream(ids)).replace(REPLACEMENT, "")
    assert shown == "".join(text for _, text in parts)


@given(st.lists(st.integers(0, TOKENIZER.rust.get_vocab_size() + 10), max_size=60))
def test_any_ids_at_all_give_text_after_a_bounded_wait(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    waited: list[int] = []
    for item in ids:
        if detokenizer.feed(item):
            waited = []
        else:
            waited.append(item)
        ordinary = [one for one in waited if TOKENIZER.piece(one).raw and not TOKENIZER.piece(one).special]
        assert len(ordinary) < MAX_PENDING
    assert REPLACEMENT not in detokenizer.flush()[-1:]


def test_flush_of_nothing_is_nothing() -> None:
    assert Detokenizer(TOKENIZER, ids_of("prompt")).flush() == ""


def metaspace_tokenizer() -> Tokenizer:
    """Return a tokenizer like SentencePiece models: words begin with U+2581, unknown bytes are <0xNN>."""
    words = ["<unk>", "\u2581Hello", "\u2581world", "!", "\u2581"]
    vocabulary = {word: place for place, word in enumerate(words)}
    vocabulary.update({f"<0x{value:02X}>": len(words) + value for value in range(256)})
    rust = RustTokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(rust, {})


def test_a_word_after_a_prompt_keeps_its_space() -> None:
    tokenizer = metaspace_tokenizer()
    detokenizer = Detokenizer(tokenizer, [1])
    assert detokenizer.feed(2) == " world"
    assert detokenizer.feed(3) == "!"


def test_fallback_bytes_wait_for_their_character() -> None:
    tokenizer = metaspace_tokenizer()
    detokenizer = Detokenizer(tokenizer, [1])
    pieces = [detokenizer.feed(5 + value) for value in "é".encode()]
    assert pieces[0] == ""
    assert "".join([*pieces, detokenizer.flush()]) == "é"


def test_pieces_of_a_metaspace_tokenizer_are_their_bytes() -> None:
    tokenizer = metaspace_tokenizer()
    assert tokenizer.piece(2).raw == b" world"
    assert tokenizer.piece(5 + 0xC3).raw == b"\xc3"
    assert tokenizer.piece(5 + 0xC3).text == REPLACEMENT


def test_a_stream_that_restarts_after_broken_bytes_keeps_the_space_of_the_next_word() -> None:
    tokenizer = metaspace_tokenizer()
    detokenizer = Detokenizer(tokenizer, [1])
    lead = 5 + 0xE4
    pieces = [detokenizer.feed(lead) for _ in range(MAX_PENDING)]
    pieces += [detokenizer.feed(item) for item in (2, 3, 2)]
    assert "".join(pieces).replace(REPLACEMENT, "") == " world! world"


def test_a_stream_that_restarts_after_many_special_tokens_keeps_the_space_of_the_next_word() -> None:
    tokenizer = metaspace_tokenizer()
    tokenizer.rust.add_special_tokens([AddedToken("<|call|>", special=True)])
    call = tokenizer.rust.token_to_id("<|call|>")
    detokenizer = Detokenizer(tokenizer, [1])
    pieces = [detokenizer.feed(item) for item in (*[call] * (MAX_PENDING + 1), 2)]
    assert "".join(pieces) == " world"
