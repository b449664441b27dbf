"""Answers out of updates: what a stream says in pieces is what the whole says at once."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_server.api.answers import responses, score_json
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.answer_reader import AnswerReader
from mamba_server.api.answers.chat_response import ChatResponseBuilder
from mamba_server.api.answers.completion_response import CompletionResponseBuilder
from mamba_server.wire import TokenLogprobs
from scripted_engine import TOKENIZER, ids_of

USAGE = responses.usage_body(3, 4, 1)
ABOUT = {"response_id": "a-1", "created": 5, "model": "tiny"}
PROMPT = ids_of("ask: ")


def completion(prompts: int = 1, **fields: Any) -> CompletionResponseBuilder:
    given = [(PROMPT, "ask: ")] * prompts
    request = CompletionRequest(prompt=["ask: "] * prompts, **fields)
    return CompletionResponseBuilder(request, TOKENIZER, given, **ABOUT)


def chat(**fields: Any) -> ChatResponseBuilder:
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], **fields)  # type: ignore[list-item]
    readers = [AnswerReader(TOKENIZER, None, None) for _ in range(request.n or 1)]
    return ChatResponseBuilder(request, TOKENIZER, PROMPT, readers=readers, **ABOUT)


def scored(ids: list[int]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(token, -0.25 * place, [token, 7], [-0.25 * place, -9.0])
        for place, token in enumerate(ids)
    ]


def update(choice: int, text: str, *, first: bool = False, finish: Any = None, **more: Any) -> ChoiceUpdate:
    ids = more.pop("ids", ids_of(text))
    return ChoiceUpdate(choice, text, ids, scored(ids), finish, first, **more)


def data(raw: bytes) -> list[dict[str, Any]]:
    """Return the JSON of each event."""
    blocks = raw.split(b"\n\n")
    assert blocks.pop() == b""
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks]


words = st.lists(st.text(alphabet='ab \u00e9\u4e16\U0001f389\n"\\', max_size=6), min_size=1, max_size=5)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[ChoiceUpdate]]:
    """Draw updates of up to three choices, each in order, mixed with each other."""
    left = [list(enumerate(draw(words))) for _ in range(draw(st.integers(1, 3)))]
    sizes = [len(parts) for parts in left]
    updates = []
    while any(left):
        choice = draw(st.sampled_from([number for number, parts in enumerate(left) if parts]))
        place, text = left[choice].pop(0)
        last = place == sizes[choice] - 1
        updates.append(update(choice, text, first=place == 0, finish="length" if last else None))
    return len(sizes), updates


@settings(deadline=None, max_examples=60)
@given(runs(), st.booleans(), st.booleans(), st.booleans())
def test_a_stream_of_completions_says_what_the_whole_says(
    run: tuple[int, list[ChoiceUpdate]], echo: bool, logprobs: bool, ids: bool
) -> None:
    n, updates = run
    fields = {"n": n, "echo": echo, "logprobs": 1 if logprobs else None, "return_token_ids": ids}
    whole_answer, stream_answer = completion(**fields), completion(**fields)
    for one in updates:
        whole_answer.collect(one)
    whole = json.loads(b"".join(whole_answer.full(USAGE)))
    chunks = [
        chunk for one in updates for chunk in data(stream_answer.chunk(one, None, with_usage=False) or b"")
    ]
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]
        if ids:
            assert [token for c in mine for token in c["token_ids"]] == choice["token_ids"]
            assert [c.get("prompt_token_ids") for c in mine] == [PROMPT] + [None] * (len(mine) - 1)
        for part in ("text_offset", "tokens", "token_logprobs", "top_logprobs") if logprobs else ():
            assert [x for c in mine for x in c["logprobs"][part]] == choice["logprobs"][part]
    assert {chunk["id"] for chunk in chunks} == {whole["id"]}
    assert all("usage" not in chunk for chunk in chunks)


def test_the_choices_of_a_prompt_share_the_scores_that_one_of_them_brings() -> None:
    builder = completion(n=3, echo=True, logprobs=1)
    scores = [None, *scored(PROMPT[1:])]
    for choice in range(3):
        mine = scores if choice == 0 else None
        builder.collect(update(choice, "a", first=True, finish="length", prompt_logprobs=mine))
        builder.seal(choice)
    choices = json.loads(b"".join(builder.full(USAGE)))["choices"]
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [len(PROMPT) + 1] * 3


@settings(deadline=None, max_examples=60)
@given(runs(), st.booleans(), st.booleans())
def test_a_stream_of_a_chat_says_what_the_whole_says(
    run: tuple[int, list[ChoiceUpdate]], logprobs: bool, ids: bool
) -> None:
    n, updates = run
    fields = {"n": n, "logprobs": logprobs, "return_token_ids": ids}
    whole_answer, stream_answer = chat(**fields), chat(**fields)
    for one in updates:
        whole_answer.collect(one)
    whole = json.loads(b"".join(whole_answer.full(USAGE)))
    chunks = [
        chunk for one in updates for chunk in data(stream_answer.chunk(one, None, with_usage=False) or b"")
    ]
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["delta"].get("role") for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]
        if ids:
            assert [token for c in mine for token in c.get("token_ids", [])] == choice["token_ids"]
        if logprobs:
            entries = [entry for c in mine for entry in (c["logprobs"] or {}).get("content", [])]
            assert entries == choice["logprobs"]["content"]
    assert [chunk.get("prompt_token_ids") for chunk in chunks if "prompt_token_ids" in chunk] == (
        [PROMPT] if ids else []
    )


def test_prompt_logprobs_are_not_lost_when_the_first_token_is_half_a_character() -> None:
    answer = completion(prompt_logprobs=1)
    half = update(0, "", first=True, ids=ids_of("\u4e16")[:1], prompt_logprobs=[None, *scored(PROMPT[1:])])
    chunk = answer.chunk(half, None, with_usage=False)
    assert chunk is not None
    [choice] = data(chunk)[0]["choices"]
    assert choice["prompt_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == len(PROMPT)
    rest = answer.chunk(update(0, "\u4e16", finish="length"), None, with_usage=False)
    assert rest is not None
    assert "prompt_logprobs" not in data(rest)[0]["choices"][0]


def test_an_update_that_shows_nothing_is_no_event() -> None:
    half = ids_of("\u4e16")[:1]
    assert completion().chunk(update(0, "", ids=half), None, with_usage=False) is None
    assert chat().chunk(update(0, "", ids=half), None, with_usage=False) is None


def test_an_update_without_text_is_an_event_for_who_asked_for_tokens() -> None:
    half = ids_of("\u4e16")[:1]
    for answer in (completion(return_token_ids=True), completion(logprobs=0), chat(logprobs=True)):
        assert answer.chunk(update(0, "", ids=half), None, with_usage=False) is not None


def test_usage_is_null_in_chunks_until_the_last_when_it_was_asked_for() -> None:
    for answer in (completion(), chat()):
        chunk = answer.chunk(update(0, "x", first=True), None, with_usage=True)
        assert chunk is not None
        assert data(chunk)[0]["usage"] is None
        [last] = data(answer.usage_chunk(USAGE))
        assert last["choices"] == []
        assert last["usage"] == {
            "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 1},
        }  # fmt: skip


def test_choices_of_several_prompts_echo_their_own_prompt() -> None:
    prompts = [(ids_of(text), text) for text in ("one ", "two ")]
    request = CompletionRequest(prompt=["one ", "two "], n=2, echo=True)
    answer = CompletionResponseBuilder(request, TOKENIZER, prompts, **ABOUT)
    for choice in range(4):
        answer.collect(update(choice, f"c{choice}", first=True, finish="stop"))
    texts = [choice["text"] for choice in json.loads(b"".join(answer.full(USAGE)))["choices"]]
    assert texts == ["one c0", "one c1", "two c2", "two c3"]


@pytest.mark.parametrize("logprob", [-math.inf, -1e30, math.nan])
def test_impossible_log_probabilities_are_json_all_the_same(logprob: float) -> None:
    entry = TokenLogprobs(5, logprob, [5, 6], [logprob, -math.inf])
    answer = chat(logprobs=True)
    chunk = answer.chunk(ChoiceUpdate(0, "x", [5], [entry], None, True), None, with_usage=False)
    assert chunk is not None
    content = data(chunk)[1]["choices"][0]["logprobs"]["content"][0]
    assert content["logprob"] == (None if math.isnan(logprob) else -9999.0)
    assert content["top_logprobs"][1]["logprob"] == -9999.0


def test_the_sampled_token_is_among_the_alternatives_though_it_is_not_one_of_the_likeliest() -> None:
    sampled, likely = ids_of("a")[0], ids_of("b")[0]
    entry = TokenLogprobs(sampled, -5.0, [likely], [-0.1], rank=17)
    body = responses.completion_logprobs(TOKENIZER, [sampled], [entry], 0)
    assert body.top_logprobs == [{"a": -5.0, "b": -0.1}]
    ranked = responses.prompt_logprobs(TOKENIZER, [None, entry])[1]
    assert ranked is not None
    assert ranked[str(sampled)] == {"logprob": -5.0, "rank": 17, "decoded_token": "a"}
    assert ranked[str(likely)]["rank"] == 1


@pytest.mark.parametrize("special", [False, True])
def test_the_scores_of_a_long_prompt_are_those_of_its_pieces(
    special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [*ids_of("long: \u4e16\U0001f389 "), 2, *ids_of("and so on")]
    scores = [None, *scored(prompt[1:])]
    request = CompletionRequest(
        prompt=[prompt], echo=True, logprobs=1, prompt_logprobs=1, skip_special_tokens=not special
    )

    def answer() -> Any:
        builder = CompletionResponseBuilder(request, TOKENIZER, [(prompt, "long: ")], **ABOUT)
        builder.collect(update(0, "a", first=True, finish="length", prompt_logprobs=[*scores]))
        return json.loads(b"".join(builder.full(USAGE)))

    def answer_of_chat() -> Any:
        builder = chat(prompt_logprobs=1)
        builder.collect(update(0, "a", first=True, finish="length", prompt_logprobs=[*scores]))
        return json.loads(b"".join(builder.full(USAGE)))

    whole, whole_chat = answer(), answer_of_chat()
    assert len(whole["choices"][0]["logprobs"]["tokens"]) == len(prompt) + 1
    for piece in (1, 2, 3, 7):
        monkeypatch.setattr(score_json, "PIECE_TOKENS", piece)
        assert (answer(), answer_of_chat()) == (whole, whole_chat)


def test_offsets_do_not_count_special_tokens_which_are_no_text() -> None:
    ids = [1, *ids_of("ab"), 2]
    body = responses.completion_logprobs(TOKENIZER, ids, [None] * len(ids), 10)
    assert body.text_offset == [10, *range(10, 10 + len(ids) - 2), 12]
    assert body.tokens[0] == "<s>"
    assert body.token_logprobs == [None] * len(ids)


@pytest.mark.parametrize("special", [False, True])
def test_offsets_are_places_in_the_text_whatever_its_characters_are_made_of(special: bool) -> None:
    text = "a\u00e9\u4e16\U0001f389b"
    ids = [*ids_of(text[:-1]), 2, *ids_of("b")]
    answer = completion(logprobs=0, skip_special_tokens=not special)
    shown = text[:-1] + ("</s>" if special else "") + "b"
    answer.collect(update(0, shown, first=True, finish="stop", ids=ids))
    [choice] = json.loads(b"".join(answer.full(USAGE)))["choices"]
    logprobs = choice["logprobs"]
    whole = [
        (token, offset)
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
        if not token.startswith("bytes:") and (special or token != "</s>")
    ]
    assert {"a", "b"} <= {token for token, _ in whole}
    assert all(shown[offset:].startswith(token) for token, offset in whole)
    # A part of a character lies where the character begins.
    parts = zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
    within = {shown[offset] for token, offset in parts if token.startswith("bytes:")}
    assert within <= set("\u00e9\u4e16\U0001f389")


def test_each_alternative_of_a_completion_has_a_key_of_its_own() -> None:
    known = range(TOKENIZER.rust.get_vocab_size())
    some = [token for token in known if "\ufffd" in TOKENIZER.piece(token).text][:20]
    entry = TokenLogprobs(some[3], -1.0, some, [-1.0] * len(some))
    answer = completion(logprobs=20)
    answer.collect(ChoiceUpdate(0, "", [some[3]], [entry], "stop", first=True))
    [choice] = json.loads(b"".join(answer.full(USAGE)))["choices"]
    (top,), (token,) = choice["logprobs"]["top_logprobs"], choice["logprobs"]["tokens"]
    assert len(top) == len(some) == 20
    assert token in top
