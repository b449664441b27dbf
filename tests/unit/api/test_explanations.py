"""Explanations in words: every reason has some, texts are bounded, and a better engine is named."""

from typing import get_args

import pytest
from tokenizers import Tokenizer as RustTokenizer

from byte_tokenizer import byte_tokenizer
from mamba_api.openai_responses import ExplainedPrompt, Explanations
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.explain_header import (
    Elsewhere,
    elsewhere_header,
    parse_elsewhere,
    wants_explanation,
)
from mamba_server.api.answers.prefix_explanation import SHOWN_CHARS, WORDS, explanation_body
from mamba_server.api.answers.requested_explanation import RecentExplanations
from mamba_server.wire import ExplainedReason, PrefixExplanation
from mamba_text.tokenizer import Tokenizer


def tokenizer() -> Tokenizer:
    rust: RustTokenizer = byte_tokenizer()
    return Tokenizer(rust, {})


def ids(text: str) -> list[int]:
    return tokenizer().encode(text, special=False)


SHARED, OWN, CACHED = "x" * 50 + "Today is 2026-11-2", "9. Hello " + "y" * 90, "8. Bye " + "z" * 90


def body(**changed: object) -> dict[str, object]:
    facts = {"resumed": 64, "depth": len(SHARED), "reason": "parted", "cached": tuple(ids(CACHED)[:64])}
    explanation = PrefixExplanation(**{**facts, **changed})
    explained = explanation_body(tokenizer(), ids(SHARED + OWN), explanation, Elsewhere(128, "engine-b"))
    Explanations.model_validate({"explain": [{"prompt": 0, **explained}]})
    return explained


def test_the_text_of_both_sides_is_shown_and_bounded() -> None:
    explained = body()
    assert explained["shared_text"] == SHARED[-SHOWN_CHARS:]
    assert explained["prompt_text"] == OWN[:SHOWN_CHARS]
    assert explained["cached_text"] == CACHED[:SHOWN_CHARS]
    hidden = body(cached=(), hidden=True)
    assert hidden["cached_text"] is None
    assert "another API key" in str(hidden["explanation"])


def test_every_reason_has_words_and_is_documented() -> None:
    reasons = get_args(ExplainedReason)
    assert set(WORDS) == set(reasons)
    assert set(get_args(ExplainedPrompt.model_fields["reason"].annotation)) == {*reasons, "other_engine"}
    for reason in reasons:
        words = str(body(reason=reason)["explanation"])
        assert words[0].isupper()
        assert words.endswith(".")
        assert "{" not in words


def test_an_engine_with_more_is_the_reason_where_its_cache_would_have_helped() -> None:
    assert body()["reason"] == "other_engine"
    assert body()["other_engine"] == {"name": "engine-b", "tokens": 128}
    assert body(resumed=128)["reason"] == "parted"
    assert body(reason="prompt_read_whole")["reason"] == "prompt_read_whole"


@pytest.mark.parametrize("value", [b"yes", b"2", b"true", b"", b"1,1"])
def test_any_other_value_of_the_header_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="X-Mambaserve-Explain"):
        wants_explanation({b"x-mambaserve-explain": value})


def test_the_header_is_off_by_default_and_a_better_engine_is_read_back() -> None:
    assert not wants_explanation({})
    assert not wants_explanation({b"x-mambaserve-explain": b"0"})
    assert wants_explanation({b"x-mambaserve-explain": b" 1 "})
    better = Elsewhere(2048, "nano-engine-7c9f")
    assert parse_elsewhere(dict([elsewhere_header(better)])) == better
    assert parse_elsewhere({}) is None
    assert parse_elsewhere({b"x-mambaserve-elsewhere": b"many somewhere"}) is None


def test_only_the_last_explanations_are_kept_by_both_identifiers() -> None:
    recent = RecentExplanations()
    for number in range(RecentExplanations.MOST + 1):
        recent.keep(f"request-{number}", f"answer-{number}", [{"number": number}])
    assert recent.find("request-0") is None
    assert recent.find("answer-0") is None
    assert recent.find("request-7") == recent.find("answer-7") == [{"number": 7}]
    # A client may repeat an identifier: the last answer counts, and nothing is left behind.
    for number in range(2 * RecentExplanations.MOST):
        recent.keep("same", f"again-{number}", [{"again": number}])
    assert recent.find("same") == [{"again": 2 * RecentExplanations.MOST - 1}]
    assert recent.find("request-7") is None
