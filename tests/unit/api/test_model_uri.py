"""The four kinds of model URI."""

import pytest

from mamba_api.errors import InvalidModelUri
from mamba_api.model_uri import ModelUri, parse_model_uri


@pytest.mark.parametrize(
    ("text", "expected", "short"),
    [
        (
            "hf://nvidia/NVIDIA-Nemotron-Nano-9B-v2",
            ModelUri("hf", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"),
            "NVIDIA-Nemotron-Nano-9B-v2",
        ),
        ("hf://a/b@refs/pr/1", ModelUri("hf", "a/b", revision="refs/pr/1"), "b"),
        ("pvc://weights/models/nano/", ModelUri("pvc", "weights", path="models/nano"), "nano"),
        ("file:///srv/models/nano", ModelUri("file", "", path="/srv/models/nano"), "nano"),
        ("file://./nano", ModelUri("file", "", path="./nano"), "nano"),
        ("builtin://tiny-recall", ModelUri("builtin", "tiny-recall"), "tiny-recall"),
    ],
)
def test_a_uri_is_taken_apart(text: str, expected: ModelUri, short: str) -> None:
    assert parse_model_uri(text) == expected
    assert expected.short_name == short


@pytest.mark.parametrize(
    "text",
    ["", "nano", "s3://bucket/x", "hf://onlyowner", "hf://a/b/c", "hf://a/b@", "pvc://Claim/x", "pvc://claim",
     "pvc://claim/", "file://", "builtin://", "builtin://../x", "HF://a/b", "hf://a/b\n", "https://x/y"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(InvalidModelUri, match=r"hf://owner/name.*pvc://claim/path"):
        parse_model_uri(text)


def test_a_path_cannot_leave_its_claim() -> None:
    with pytest.raises(InvalidModelUri, match="leaves the claim"):
        parse_model_uri("pvc://claim/models/../../etc")
