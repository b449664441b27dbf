"""From requests to the engine's parameters: defaults, precedence and limits of the model."""

from typing import Any

import pytest

from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.requests.errors import ContextTooLong
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_server.api.requests.prompts import check_token_ids
from mamba_server.api.requests.sampling import output_tokens, sampling_params
from mamba_server.wire import SamplingParams
from mamba_text.generation_defaults import GenerationDefaults

LIMITS = ModelLimits(vocab_size=100, max_model_len=50, eos_token_ids=(2,))
NONE = GenerationDefaults()


def text(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})


def params(request: Any, defaults: GenerationDefaults = NONE, most: int = 10) -> SamplingParams:
    return sampling_params(request, defaults, LIMITS, most)


def test_a_request_that_says_nothing_samples_plainly() -> None:
    assert params(text()) == SamplingParams(max_tokens=10)


def test_the_models_defaults_are_taken() -> None:
    defaults = GenerationDefaults(0.6, 0.9, 20, 1.1)
    made = params(text(), defaults)
    assert (made.temperature, made.top_p, made.top_k, made.repetition_penalty) == (0.6, 0.9, 20, 1.1)


def test_the_request_wins_over_the_models_defaults_also_with_zero() -> None:
    defaults = GenerationDefaults(0.6, 0.9, 20, 1.1)
    made = params(text(temperature=0, top_p=1.0, top_k=0, repetition_penalty=1.0), defaults)
    assert (made.temperature, made.top_p, made.top_k, made.repetition_penalty) == (0.0, 1.0, 0, 1.0)


def test_top_k_minus_one_is_all() -> None:
    assert params(text(top_k=-1)).top_k == 0


def test_further_end_tokens_of_the_model_are_stop_tokens() -> None:
    defaults = GenerationDefaults(eos_token_ids=(2, 7))
    assert params(text(stop_token_ids=[9]), defaults).stop_token_ids == (9, 7)


def test_ignore_eos_ignores_them_and_keeps_the_requests_own() -> None:
    defaults = GenerationDefaults(eos_token_ids=(2, 7))
    made = params(text(stop_token_ids=[9], ignore_eos=True), defaults)
    assert (made.stop_token_ids, made.ignore_eos) == ((9,), True)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (text(), (-1, -1)),
        (text(logprobs=0), (0, -1)),
        (text(logprobs=3), (3, -1)),
        (text(logprobs=3, echo=True), (3, 3)),
        (text(prompt_logprobs=2), (-1, 2)),
        (text(logprobs=1, echo=True, prompt_logprobs=5), (1, 5)),
        (chat(), (-1, -1)),
        (chat(logprobs=True), (0, -1)),
        (chat(logprobs=True, top_logprobs=4), (4, -1)),
        (chat(logprobs=False), (-1, -1)),
    ],
)
def test_log_probabilities_are_asked_for_as_wanted(request_: Any, expected: tuple[int, int]) -> None:
    made = params(request_)
    assert (made.logprobs, made.prompt_logprobs) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"stop_token_ids": [100]}, "stop_token_ids"),
        ({"min_tokens": 11}, "min_tokens"),
    ],
)
def test_what_the_model_cannot_do_is_refused_with_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        params(text(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("request_", "prompt", "expected"),
    [
        (text(), 10, 16),
        (text(), 45, 5),
        (text(max_tokens=40), 10, 40),
        (text(max_tokens=0, echo=True), 10, 0),
        (text(max_tokens=0, echo=True), 50, 0),
        (chat(), 10, 40),
        (chat(max_tokens=3), 10, 3),
        (chat(max_tokens=3, max_completion_tokens=5), 10, 5),
    ],
)
def test_output_is_what_was_asked_for_or_what_fits(request_: Any, prompt: int, expected: int) -> None:
    assert output_tokens(request_, prompt, LIMITS) == expected


@pytest.mark.parametrize(
    ("request_", "prompt", "param"),
    [
        (text(), 50, "prompt"),
        (text(max_tokens=0, echo=True), 51, "prompt"),
        (text(max_tokens=41), 10, "max_tokens"),
        (chat(), 51, "messages"),
        (chat(max_completion_tokens=41), 10, "max_completion_tokens"),
    ],
)
def test_what_does_not_fit_the_context_says_the_numbers(request_: Any, prompt: int, param: str) -> None:
    with pytest.raises(ContextTooLong) as caught:
        output_tokens(request_, prompt, LIMITS)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
    assert "50" in caught.value.message
    assert str(prompt) in caught.value.message
    if prompt < 50:
        assert f"at most {50 - prompt} " in caught.value.message


@pytest.mark.parametrize("ids", [[], [100], [5, 2**31 - 1]])
def test_a_prompt_must_have_tokens_of_the_model(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_token_ids(ids, LIMITS, "prompt")
    assert caught.value.param == "prompt"


def test_a_prompt_of_the_highest_id_is_fine() -> None:
    check_token_ids([0, 99], LIMITS, "prompt")


@pytest.mark.parametrize("fields", [{"temperature": 1e-40}, {"temperature": 1e-50}, {"top_p": 0}])
def test_what_leaves_the_most_likely_token_alone_is_greedy(fields: dict[str, Any]) -> None:
    made = params(text(**fields), GenerationDefaults(temperature=0.6))
    assert (made.temperature, made.top_p) == (0.0, 1.0)


def test_the_models_min_p_is_taken_unless_the_request_has_one() -> None:
    defaults = GenerationDefaults(min_p=0.2)
    assert [params(text(**fields), defaults).min_p for fields in ({}, {"min_p": 0})] == [0.2, 0]
