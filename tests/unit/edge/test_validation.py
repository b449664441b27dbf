"""Locations of pydantic's errors, as a client would write them."""

import pytest

from mamba_edge.validation import param_of


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
