"""The archive of a tokenizer: the same ids on the other machine, and no strange files."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest

from mamba_text import text_archive
from mamba_text.errors import BadTokenizer, TextError
from mamba_text.prompt import TextProcessor
from mamba_text.text_archive import FILES, TextArchive, load_text_side

MODEL = Path(__file__).parents[3] / "server/mamba_server/builtin/tiny-recall"


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_what_is_unpacked_encodes_as_the_model_directory_does() -> None:
    here, there = TextProcessor.load(MODEL), load_text_side(TextArchive.pack(MODEL).data)
    text = "a text\n with <|im_start|> and ünïcode"
    assert there.tokenizer.encode(text) == here.tokenizer.encode(text)
    assert there.template is not None
    messages = [{"role": "user", "content": "hello"}]
    assert there.template.text(messages) == here.template.text(messages)
    assert there.defaults == here.defaults


def test_the_fingerprint_is_that_of_the_files_that_matter(tmp_path: Path) -> None:
    first = TextArchive.pack(MODEL)
    copy = tmp_path / "copy"
    shutil.copytree(MODEL, copy)
    (copy / "README").write_text("x")
    assert TextArchive.pack(copy) == first
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert TextArchive.pack(copy).fingerprint != first.fingerprint
    assert set(zipfile.ZipFile(io.BytesIO(first.data)).namelist()) <= set(FILES)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"no zip", TextArchive.pack(MODEL).data[:-40], zipped(), zipped(**{"tokenizer.json": b"{"}),
        zipped(**{"../tokenizer.json": b"{}"}), zipped(**{"/etc/x": b"{}"}), zipped(**{"x.safetensors": b""}),
    ],
)  # fmt: skip
def test_what_is_no_such_archive_is_refused(data: bytes) -> None:
    with pytest.raises(TextError):
        load_text_side(data)


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_archive, "MOST_BYTES", 100_000)
    bomb = zipped(**{"config.json": b" " * 50_000, "tokenizer.json": b" " * 50_001})
    assert len(bomb) < 1000
    with pytest.raises(BadTokenizer, match="larger than 100000 bytes"):
        load_text_side(bomb)
