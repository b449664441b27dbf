"""Bodies of the OpenAI surface: what is taken, what is refused, and what the client is told."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_api.openai_fields import MAX_CHOICES, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOPS

USER = [{"role": "user", "content": "x"}]


def text(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": USER, **fields})


def refusal(make: Any, **fields: Any) -> str:
    """Return the error text for the client, with the field it is about."""
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    first = caught.value.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"


BOUNDS: list[tuple[str, Any, Any]] = [
    ("temperature", 0, 2), ("top_p", 1e-9, 1), ("top_k", -1, 2**31 - 1), ("min_p", 0, 1),
    ("n", 1, MAX_CHOICES),
    ("seed", -(2**63), 2**63 - 1), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2),
    ("repetition_penalty", 1e-9, 10), ("min_tokens", 0, 2**31 - 1), ("prompt_logprobs", 0, MAX_LOGPROBS),
    ("priority", -(2**31), 2**31 - 1),
]  # fmt: skip


@pytest.mark.parametrize(("field", "least", "most"), BOUNDS, ids=[one[0] for one in BOUNDS])
def test_a_number_is_taken_at_its_bounds_and_refused_beyond_them(field: str, least: Any, most: Any) -> None:
    step = 1 if isinstance(least, int) and isinstance(most, int) and most > 10 else 0.001
    for make in (text, chat):
        assert getattr(make(**{field: least}), field) == least
        assert getattr(make(**{field: most}), field) == most
        assert refusal(make, **{field: most + step}).startswith(f"{field}:")
        assert refusal(make, **{field: least - step}).startswith(f"{field}:")


@pytest.mark.parametrize("field", [one[0] for one in BOUNDS])
@pytest.mark.parametrize("value", [True, "1", [1], {}], ids=str)
def test_a_value_of_another_type_is_refused_and_never_converted(field: str, value: Any) -> None:
    assert refusal(text, **{field: value}).startswith(f"{field}:")


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_a_number_that_is_none_is_refused(field: str, value: float) -> None:
    assert refusal(chat, **{field: value}).startswith(f"{field}:")


def test_null_is_absent_everywhere_as_clients_send_it() -> None:
    nothing = dict.fromkeys(GenerationRequest.model_fields)

    assert text(**nothing) == text()
    assert chat(**nothing) == chat()


def test_fields_that_nobody_knows_are_ignored() -> None:
    assert text(from_the_future=1) == text()


PROMPTS: list[tuple[Any, list[Any]]] = [
    ("x", ["x"]), ("", [""]), (["a", "b"], ["a", "b"]), ([""], [""]),
    ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]),
    ([0], [[0]]), ([2**31 - 1], [[2**31 - 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "prompts"), PROMPTS, ids=str)
def test_a_prompt_in_any_form_is_a_list_of_prompts(prompt: Any, prompts: list[Any]) -> None:
    assert text(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], [[1], []], [-1], [2**31], [1.5], [True], ["a", 1], [["a"]], None, 5, {"a": 1}],
    ids=str,
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    assert refusal(text, prompt=prompt).startswith("prompt")


@given(st.one_of(st.text(max_size=5), st.lists(st.text(min_size=1, max_size=5), max_size=40)))
def test_stops_are_a_tuple_of_at_most_so_many_texts(stop: str | list[str]) -> None:
    if stop == "":
        assert text(stop=stop).stops == ()
    elif isinstance(stop, list) and len(stop) > MAX_STOPS:
        assert refusal(text, stop=stop).startswith("stop")
    else:
        assert text(stop=stop).stops == ((stop,) if isinstance(stop, str) else tuple(stop))


def test_too_many_stops_say_how_many_are_allowed() -> None:
    assert re.search(r"^stop: .*\b32\b.*\b33$", refusal(text, stop=["x"] * 33))
    assert text().stops == ()


@pytest.mark.parametrize("key", ["", "a", "-1", "1.0", " 1", "\u0661", "9" * 11])
def test_a_bias_needs_a_token_id_as_its_key(key: str) -> None:
    said = refusal(text, logit_bias={key: 1})
    assert said.startswith("logit_bias: ")
    assert said.endswith(repr(key))


def test_biases_are_bounded_in_size_and_number() -> None:
    assert text(logit_bias={"0": -100, "50256": 100}).logit_bias == {"0": -100, "50256": 100}
    assert refusal(text, logit_bias={"1": 101}).startswith("logit_bias.1:")
    assert refusal(text, logit_bias={str(n): 0 for n in range(MAX_LOGIT_BIAS + 1)}).startswith("logit_bias:")


def test_a_table_is_counted_before_anybody_looks_at_its_entries() -> None:
    too_many = {str(n): "wrong" for n in range(MAX_LOGIT_BIAS + 1)}
    assert refusal(text, logit_bias=too_many).startswith("logit_bias:")


CASES: list[tuple[str, Any, dict[str, Any], str]] = [
    ("options of a stream that is none", chat, {"stream_options": {}},
     "stream_options: only allowed together with"),
    ("options of a stream that is off", text, {"stream": False, "stream_options": {"include_usage": True}},
     "only allowed together with 'stream': true"),
    ("a schema that is missing", chat, {"response_format": {"type": "json_schema"}}, "response_format: "),
    ("two forms", chat, {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
     "structured_outputs: not allowed together with response_format"),
    ("no form", text, {"structured_outputs": {}}, "structured_outputs: exactly one of json, regex"),
    ("a form twice", text, {"structured_outputs": {"regex": "a", "json_object": True}},
     "structured_outputs: exactly one of json, regex"),
    ("an object that is none", text, {"structured_outputs": {"json_object": False}},
     "structured_outputs: exactly one of"),
    ("an unknown format", chat, {"response_format": {"type": "xml"}}, "response_format.type:"),
    ("ranked choices", text, {"best_of": 3, "n": 2}, "best_of: only the value of 'n' is supported"),
    ("ranked choices without n", text, {"best_of": 2}, "best_of: only the value of 'n'"),
    ("a suffix", text, {"suffix": "end"}, "suffix: is not supported"),
    ("any JSON", chat, {"guided_json": {}}, "guided_json: is not supported; use structured_outputs"),
    ("one of nothing", text, {"guided_choice": []}, "guided_choice: is not supported"),
    ("a grammar", text, {"grammar": "root ::= x"}, "grammar: is not supported"),
    ("an echo of a chat", chat, {"echo": True}, "echo: is not supported"),
    ("ranked answers", chat, {"best_of": 2}, "best_of: is not supported"),
    ("a suffix of an answer", chat, {"suffix": "end"}, "suffix: is not supported"),
    ("special tokens before a template's", chat, {"add_special_tokens": True},
     "add_special_tokens: is not supported"),
    ("no tokens", text, {"max_tokens": 0}, "max_tokens: 0 is allowed with 'echo': true alone"),
    ("no tokens of a chat", chat, {"max_tokens": 0}, "max_tokens: must be at least 1"),
    ("no completion tokens", chat, {"max_completion_tokens": 0}, "max_completion_tokens:"),
    ("alternatives of nothing", chat, {"top_logprobs": 2},
     "top_logprobs: only allowed together with 'logprobs'"),
    ("alternatives of what is off", chat, {"logprobs": False, "top_logprobs": 2},
     "top_logprobs: only allowed"),
    ("too many alternatives", chat, {"logprobs": True, "top_logprobs": MAX_LOGPROBS + 1}, "top_logprobs:"),
    ("a forced tool of none", chat, {"tool_choice": "required"}, "tool_choice: 'required' needs tools"),
    ("an unknown choice", chat, {"tool_choice": "any"}, "tool_choice: must be one of auto, none, required"),
    ("a choice of another kind", chat, {"tool_choice": 5}, "tool_choice: must be one of"),
    ("a named tool that is none", chat, {"tool_choice": {"type": "function", "function": {"name": "f"}}},
     "tool_choice: tools has no function 'f'"),
    ("a custom tool that is none", chat, {"tool_choice": {"type": "custom", "custom": {"name": "f"}}},
     "tool_choice: tools has no custom tool 'f'"),
    ("an allowed tool that is none", chat,
     {"tools": [{"type": "function", "function": {"name": "g"}}], "tool_choice": {"type": "allowed_tools",
      "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}}},
     "tool_choice: tools has no function 'f'"),
    ("no allowed tools", chat,
     {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
     "tool_choice.Selection.allowed_tools.tools:"),
    ("a choice of two kinds", chat,
     {"tool_choice": {"type": "function", "function": {"name": "f"}, "custom": {"name": "f"}}},
     "'custom' does not belong to the type 'function'; leave it out"),
    ("a custom tool without what it is", chat, {"tools": [{"type": "custom"}]},
     "tools.0: custom: 'custom' is missing, which the type 'custom' needs"),
    ("a format that is none", chat,
     {"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}]},
     "'grammar', with 'syntax' and 'definition', belongs to the type 'grammar'"),
    ("two tools of a name", chat,
     {"tools": [{"type": kind, kind: {"name": "f"}} for kind in ("custom", "function")]},
     "tools: another tool has the name of the custom tool 'f'"),
    ("a tool without a name", chat, {"tools": [{"type": "function", "function": {}}]},
     "tools.0.function.name:"),
    ("no messages", chat, {"messages": []}, "messages:"),
    ("a message of nobody", chat, {"messages": [{"role": "ghost", "content": "x"}]}, "messages.0.role:"),
    ("a message without content", chat, {"messages": [{"role": "user"}]},
     "messages.0: content: a message of role 'user' needs content"),
    ("a picture", chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "type 'image_url' is not supported: only text parts are"),
    ("a part without text", chat, {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "a text content part needs 'text'"),
    ("a long salt", chat, {"cache_salt": "x" * 257}, "cache_salt:"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "fields", "says"), [one[1:] for one in CASES], ids=[one[0] for one in CASES]
)
def test_what_cannot_be_done_is_refused_in_words(make: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    told = [
        f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        for one in caught.value.errors()
    ]
    assert any(says in line for line in told), told


TAKEN: list[tuple[str, Any, dict[str, Any]]] = [
    ("an echo alone", text, {"max_tokens": 0, "echo": True}),
    ("as many ranked as asked for", text, {"best_of": 2, "n": 2}),
    ("an empty suffix", text, {"suffix": ""}),
    ("plain text", chat, {"response_format": {"type": "text"}}),
    ("an assistant that only calls tools", chat,
     {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "4"}]}),
    ("parts of text", chat, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}),
    ("tools that are not to be called", chat,
     {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}], "tool_choice": "none"}),
    ("no tools to choose from", chat, {"tools": [], "tool_choice": "auto"}),
    ("usage in a stream", chat, {"stream": True, "stream_options": {"include_usage": True}}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "fields"), [one[1:] for one in TAKEN], ids=[one[0] for one in TAKEN])
def test_what_clients_really_send_is_taken(make: Any, fields: dict[str, Any]) -> None:
    made = make(**fields)

    assert all(getattr(made, name) is not None for name in fields)


@pytest.mark.parametrize(
    "field",
    [{"documents": []}, {"web_search_options": {}}, {"modalities": ["text"]}, {"echo": False},
     {"guided_json": None},
     {"best_of": 1}, {"add_special_tokens": False}, {"audio": {}}, {"use_beam_search": False}],
    ids=str,
)  # fmt: skip
def test_what_is_not_supported_may_be_sent_where_it_asks_for_nothing(field: dict[str, Any]) -> None:
    assert chat(**field) == chat()


def test_what_a_message_says_beside_its_content_reaches_the_template() -> None:
    [message] = chat(messages=[{"role": "user", "content": "x", "reasoning": "because"}]).messages

    assert message.model_dump(exclude_none=True) == {"role": "user", "content": "x", "reasoning": "because"}
