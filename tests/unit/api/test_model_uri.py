"""The kinds of model URI."""

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
        ("s3://my-models/team/nano/", ModelUri("s3", "my-models", path="team/nano"), "nano"),
        (f"gs://m.x/a?revision={'0a' * 20}", ModelUri("gs", "m.x", path="a", revision="0a" * 20), "a"),
        ("oci://localhost:5000/org/nano:v1", ModelUri("oci", "localhost:5000", "org/nano", "v1"), "nano"),
        (f"oci://r.io/nano@sha256:{'0' * 64}", ModelUri("oci", "r.io", "nano", f"sha256:{'0' * 64}"), "nano"),
        (
            f"https://h:8080/x/nano.tar.gz?sha256={'0a' * 32}",
            ModelUri("https", "h:8080", path="x/nano.tar.gz", sha256="0a" * 32),
            "nano",
        ),
    ],
)
def test_a_uri_is_taken_apart(text: str, expected: ModelUri, short: str) -> None:
    assert parse_model_uri(text) == expected
    assert expected.short_name == short


@pytest.mark.parametrize(
    "text",
    ["", "nano", "ftp://bucket/x", "hf://onlyowner", "hf://a/b/c", "hf://a/b@", "pvc://Claim/x", "pvc://claim",
     "pvc://claim/", "file://", "builtin://", "builtin://../x", "HF://a/b", "hf://a/b\n", "https://x", "s3://b",
     "https://user:secret@x/y", "oci://r/x", "oci://r/x:", "s3://bucket/x?version=1", "s3://bucket/a b"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(InvalidModelUri, match=r"hf://owner/name.*pvc://claim/path"):
        parse_model_uri(text)


def test_a_path_cannot_leave_its_claim() -> None:
    with pytest.raises(InvalidModelUri, match="leaves the claim"):
        parse_model_uri("pvc://claim/models/../../etc")


@pytest.mark.parametrize(
    ("text", "commit", "pinned"),
    [
        ("hf://a/b@main", "c" * 40, f"hf://a/b@{'c' * 40}"),
        ("s3://bucket/x", "c" * 40, f"s3://bucket/x?revision={'c' * 40}"),
        ("https://h/x/", "c" * 40, f"https://h/x?revision={'c' * 40}"),
        ("oci://r/x:v1", "c" * 64, f"oci://r/x@sha256:{'c' * 64}"),
        (f"https://h/x.tar?sha256={'c' * 64}", "c" * 40, f"https://h/x.tar?sha256={'c' * 64}"),
    ],
)
def test_the_uri_of_a_commit_leads_to_that_commit_and_its_folder(text: str, commit: str, pinned: str) -> None:
    assert parse_model_uri(text).pinned(commit) == pinned
    again = parse_model_uri(pinned)
    assert again.pinned(commit) == pinned
    if again.scheme != "hf":
        assert again.pin == commit
        assert again.folder == parse_model_uri(text).folder


def test_two_sources_never_share_a_folder() -> None:
    uris = ["s3://bucket/a-b", "s3://bucket/a/b", "gs://bucket/a/b", "s3://bucket-a/b", "http://bucket/a/b"]
    assert len({parse_model_uri(uri).folder for uri in uris}) == len(uris)
