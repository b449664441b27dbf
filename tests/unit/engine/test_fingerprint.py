"""A fingerprint says whether two engines tokenize and compute alike, wherever their files lie."""

from pathlib import Path

import pytest

from mamba_server.engine.fingerprint import fingerprint_of


def model(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    content = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": bytes(range(256)) * 200}
    for name, data in {**content, **{name.replace("__", "."): data for name, data in files.items()}}.items():
        (folder / name).write_bytes(data)
    return folder


def test_the_same_files_elsewhere_are_the_same_model(tmp_path: Path) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b", README__md=b"hello")
    assert fingerprint_of(first, "bfloat16", "float32") == fingerprint_of(second, "bfloat16", "float32")


@pytest.mark.parametrize(
    "changed",
    [
        {"config__json": b"{ }"},
        {"tokenizer__json": b"[1]"},
        {"chat_template__jinja": b"x"},
        {"model__safetensors": bytes(51200)},
        {"model__safetensors": bytes(range(256)) * 201},
        {"model-2__safetensors": b"x"},
    ],
)
def test_other_text_or_other_weights_are_another_model(tmp_path: Path, changed: dict[str, bytes]) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b", **changed)
    assert fingerprint_of(first, "float32", "float32") != fingerprint_of(second, "float32", "float32")


def test_other_types_are_another_model(tmp_path: Path) -> None:
    folder = model(tmp_path / "a")
    types = [("float32", "float32"), ("float32", "float16"), ("float16", "float32")]
    assert len({fingerprint_of(folder, *each) for each in types}) == 3
