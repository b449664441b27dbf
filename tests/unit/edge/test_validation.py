"""Locations of pydantic's errors, as a client would write them."""

from typing import Any

import pytest
from pydantic import ValidationError

from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.app.validation import invalid, param_of


@pytest.mark.parametrize(
    ("loc", "param"),
    [
        ((), None),
        (("temperature",), "temperature"),
        (("prompt", "str"), "prompt"),
        (("prompt", "list[list[constrained-int]]", 1, 0), "prompt[1][0]"),
        (("messages", 2, "content", "list[ContentPart]", 0, "type"), "messages[2].content[0].type"),
        (("stop", "list[constrained-str]", 3), "stop[3]"),
        (("stream_options", "include_usage"), "stream_options.include_usage"),
    ],
)
def test_locations_read_like_the_request(loc: tuple[int | str, ...], param: str | None) -> None:
    assert param_of(loc) == param


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        (CompletionRequest, {"prompt": 5}, "prompt: must be a valid string or list"),
        (CompletionRequest, {"prompt": [1.5]}, "prompt[0]: must be a valid string, integer or list"),
        (CompletionRequest, {"prompt": [1, "a"]}, "prompt[1]: must be a valid integer"),
        (CompletionRequest, {"prompt": "x", "stop": 5}, "stop: must be a valid string or list"),
        (CompletionRequest, {"prompt": "x", "n": "2"}, "n: must be a valid integer"),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: must be a valid string or list",
        ),
    ],
    ids=str,
)
def test_a_value_of_no_type_that_a_field_may_have_is_told_all_of_them(
    model: Any, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    told = invalid([dict(one) for one in caught.value.errors()])
    assert (told.message, told.code) == (said, "invalid_type")
