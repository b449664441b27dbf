"""Archive of the files that determine how a model's text becomes token ids, sent by engines to gateways.

It is a plain zip of the few files that `TextProcessor.load` reads, with the same bytes for the same files. An
archive from the network is unpacked within limits, and refused if it has any other file.
"""

import hashlib
import io
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from mamba_text.chat_template import TOOL_TEMPLATE
from mamba_text.errors import BadTokenizer
from mamba_text.prompt import TextProcessor

FILES = (
    TOOL_TEMPLATE,
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
MOST_PACKED_BYTES = 64 << 20
"""Largest archive that is accepted from another machine, in bytes."""
MOST_BYTES = 256 << 20
"""Largest total size of the unpacked files, in bytes."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class TextArchive:
    """The archive of the text files of a model. `fingerprint` is a digest of their names and contents."""

    data: bytes
    fingerprint: str

    @classmethod
    def pack(cls, directory: Path) -> "TextArchive":
        """Return an archive of the `FILES` that `directory` has. Raises OSError if one cannot be read."""
        out, digest = io.BytesIO(), hashlib.blake2b(digest_size=16)
        with zipfile.ZipFile(out, "w") as archive:
            for name in FILES:
                if not (path := directory / name).is_file():
                    continue
                content = path.read_bytes()
                digest.update(f"{name}:{len(content)}:".encode() + content)
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content, compresslevel=3)
        return cls(out.getvalue(), digest.hexdigest())


def load_text_side(data: bytes) -> TextProcessor:
    """Load a packed archive. Raises TextError if it is broken, too large or has other files."""
    with tempfile.TemporaryDirectory(prefix="mambaserve-text-") as folder:
        try:
            _unpack(data, Path(folder))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise BadTokenizer(f"the archive of the tokenizer is broken: {error}") from error
        return TextProcessor.load(Path(folder))


def _unpack(data: bytes, folder: Path) -> None:
    left = MOST_BYTES
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            if entry.filename not in FILES:
                raise BadTokenizer(
                    f"the archive of the tokenizer has an unexpected file: {entry.filename[:80]!r}"
                )
            with archive.open(entry) as file:  # the declared size of an entry is not trusted
                content = file.read(left + 1)
            left -= len(content)
            if left < 0:
                raise BadTokenizer(f"the files of the tokenizer are larger than {MOST_BYTES} bytes together")
            path = folder / entry.filename
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
