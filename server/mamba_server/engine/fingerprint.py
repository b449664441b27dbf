"""Fingerprint of a model: engines may share cached states only if theirs are equal.

Two engines with one fingerprint tokenize and compute alike, wherever their files are.
"""

from hashlib import blake2b
from pathlib import Path

from mamba_api.choices import Quantization

SAMPLE_BYTES = 4096
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
READ_WHOLE = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files that determine the tokens of a prompt. Of weights, three samples distinguish two trainings."""


def fingerprint_of(directory: Path, dtype: str, state_dtype: str, quantization: Quantization = "none") -> str:
    """Return 32 hexadecimal digits that identify the model in `directory` and the types it is run with.

    The digest is of the types, the whole files in `READ_WHOLE`, and three samples of each file of weights.
    Raises OSError if a file cannot be read.
    """
    digest = blake2b(digest_size=16)

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little") + part)

    for part in (dtype, state_dtype, *(() if quantization == "none" else (quantization,))):
        add(part.encode())
    if (tool_template := directory / TOOL_TEMPLATE).is_file():
        add(TOOL_TEMPLATE.encode())
        add(tool_template.read_bytes())
    for path in sorted(directory.iterdir()):
        if path.name in READ_WHOLE:
            add(path.name.encode())
            add(path.read_bytes())
        elif path.suffix == ".safetensors":
            add(path.name.encode())
            size = path.stat().st_size
            add(size.to_bytes(8, "little"))
            with path.open("rb") as file:
                for offset in (0, size // 2, max(0, size - SAMPLE_BYTES)):
                    file.seek(offset)
                    add(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
