"""A model URI leads to a directory with config.json, or to an error that says what to write instead."""

import subprocess
import sys
from pathlib import Path

import pytest

from mamba_server.model.checkpoint.errors import DownloadFailed, InvalidSource, SourceNotFound
from mamba_server.model.checkpoint.source import display_name, resolve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "some model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_plain_path_and_a_file_uri_name_the_same_directory(model: Path) -> None:
    assert resolve(str(model)) == model
    assert resolve(f"file://{str(model).replace(' ', '%20')}") == model
    assert resolve(f"file://localhost{model}") == model


def test_a_claim_is_found_where_it_is_mounted(model: Path) -> None:
    claim = model.parent / "weights-1"
    claim.mkdir()
    model = model.rename(claim / "some model")
    assert resolve("pvc://weights-1/some%20model/", pvc_root=claim.parent) == model


@pytest.mark.parametrize("uri", ["pvc://c/../cx/m", "pvc://c/../../etc", "pvc:///m", "pvc://../m"])
def test_a_claim_uri_cannot_lead_out_of_its_claim(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSource):
        resolve(uri, pvc_root=tmp_path)


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("", "write a directory"),
        ("ftp://bucket/model", "write file, hf, pvc, builtin, s3"),
        ("s3://bucket/model?version=1", "s3://BUCKET/PREFIX"),
        ("oci://registry/model", "oci://REGISTRY/REPOSITORY:TAG"),
        ("file://models/x", "file:///models/x"),
        ("hf://only-a-name", "hf://OWNER/NAME"),
        ("hf://a/b/c", "hf://OWNER/NAME"),
        ("builtin://../x", "builtin://NAME"),
    ],
)
def test_a_malformed_uri_is_answered_with_the_right_form(uri: str, hint: str) -> None:
    with pytest.raises(InvalidSource, match=hint):
        resolve(uri)


def test_a_missing_directory_that_looks_like_a_hub_name_hints_at_the_hub() -> None:
    with pytest.raises(SourceNotFound, match="write hf://nvidia/some-model"):
        resolve("nvidia/some-model")


def test_a_file_or_a_directory_without_a_configuration_is_refused(model: Path) -> None:
    with pytest.raises(SourceNotFound, match="is a file"):
        resolve(str(model / "config.json"))
    with pytest.raises(SourceNotFound, match=r"no config\.json"):
        resolve(str(model.parent))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        # "cannot be read" or "does not exist": versions of Python differ in what they raise here.
        ("x" * 300, ""),
        (f"file:///{'x' * 300}", ""),
        ("~no-such-user/model", "the home directory does not exist"),
        (
            "/dev/null/model",
            "the directory /dev/null/model does not exist; a model is a directory, hf://OWNER/NAME or builtin://",
        ),
        ("a\0b", "does not exist"),
        ("file:///a%00b", "does not exist"),
    ],
)
def test_a_path_the_system_cannot_look_at_is_one_that_is_not_there(uri: str, words: str) -> None:
    with pytest.raises(SourceNotFound) as caught:
        resolve(uri)
    assert str(caught.value).startswith(f"{uri}: ")
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_home_directory_may_be_written_short(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    assert resolve("~/some model") == model


def test_a_link_to_a_model_is_the_model(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(model)
    assert resolve(str(tmp_path / "latest")) == tmp_path / "latest"
    (tmp_path / "stale").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceNotFound, match="does not exist"):
        resolve(str(tmp_path / "stale"))


def test_the_scheme_may_be_written_in_capitals(model: Path) -> None:
    assert resolve(f"FILE://{str(model).replace(' ', '%20')}") == model


def test_an_unknown_builtin_lists_those_that_are_shipped() -> None:
    with pytest.raises(SourceNotFound, match="built-in models are: "):
        resolve("builtin://no-such-model")


def test_names_shown_in_the_api_are_the_last_part_of_the_uri() -> None:
    assert display_name("hf://nvidia/Nemotron-H-8B@v1") == "Nemotron-H-8B"
    assert display_name("/srv/models/mine/") == "mine"
    assert display_name("file:///srv/models/a%20b") == "a b"
    assert display_name("builtin://tiny") == "tiny"


@pytest.mark.parametrize(
    ("uri", "name"),
    [(".", "some model"), ("./", "some model"), ("../some model/.", "some model"), ("..", "parent")],
)
def test_the_directory_one_stands_in_has_its_own_name(
    model: Path, monkeypatch: pytest.MonkeyPatch, uri: str, name: str
) -> None:
    monkeypatch.chdir(model)
    assert display_name(uri) == (model.parent.name if name == "parent" else name)


@pytest.mark.parametrize("uri", ["", "  ", "ftp://a/b", "file://host/m"])
def test_a_name_is_not_made_of_what_is_no_uri(uri: str) -> None:
    with pytest.raises(InvalidSource):
        display_name(uri)


def test_finding_a_model_loads_neither_torch_nor_the_hub_client(model: Path) -> None:
    code = (
        "import sys; from mamba_server.model.checkpoint.source import resolve; resolve(sys.argv[1]);"
        "sys.exit(bool({'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(model)], check=False).returncode == 0


def test_an_unreachable_hub_is_a_download_error_that_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DownloadFailed, match="write a local directory"):
        resolve("hf://owner/name")
