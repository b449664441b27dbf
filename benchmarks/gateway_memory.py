"""Memory of a gateway: of the process alone, with a tokenizer and remembered texts, and with an index.

Run as `python -m benchmarks.gateway_memory`; writes JSON and Markdown to benchmarks/results. Each figure is
of a process of its own, the first ones of a real gateway without engines, the others of the part alone.
"""

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.cache.record import write
from benchmarks.gateway_idle import resident_bytes
from tokenizers import Tokenizer, models, pre_tokenizers

from mamba_prefix.prefix_table import PrefixTable
from mamba_text.segment_cache import MOST_CACHED_BYTES, SegmentCache
from mamba_text.text_archive import TextArchive, load_text_side

MIB = 1 << 20
WORDS = 230_000
"""Words of the tokenizer; this number gives a file of about 17 MB."""
GATEWAYS = {
    "gateway_mib": (),
    "gateway_with_redis_mib": ("--redis-url", "redis://127.0.0.1:9", "--prefix-index-scope", "a"),
    "gateway_with_picker_mib": ("--endpoint-picker-port", "0"),
}


def of_a_gateway(*options: str) -> int:
    """Return the bytes of a gateway that is ready."""
    command = [sys.executable, "-m", "mamba_cli", "gateway", "--port", "0", "--backend", "http://127.0.0.1:9"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "gateway ready at" in line:
                    return resident_bytes(process.pid)
        finally:
            process.terminate()
    raise RuntimeError("the gateway ended")


def _vocabulary(rng: random.Random) -> tuple[dict[str, int], list[tuple[str, str]]]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    short = list(vocabulary)
    while len(vocabulary) < WORDS:
        left, right = rng.choice(short), rng.choice(short)
        if left + right in vocabulary:
            continue
        vocabulary[left + right] = len(vocabulary)
        if len(left + right) <= 4:
            short.append(left + right)
        merges.append((left, right))
    return vocabulary, merges


def packed_tokenizer(folder: Path) -> tuple[bytes, int]:
    """Return an archive as engines send it, and the bytes of the tokenizer in it."""
    vocabulary, merges = _vocabulary(random.Random(0))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|turn|>"])  # texts are remembered between two of them
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": next(iter(vocabulary))})
    )
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(vocabulary) + 1}))
    return TextArchive.pack(folder).data, (folder / "tokenizer.json").stat().st_size


def of_texts(archive: Path) -> dict[str, float]:
    """Return the MiB of the tokenizer in a packed archive, and of all remembered pieces with it."""
    before = resident_bytes(os.getpid())
    side = load_text_side(archive.read_bytes())
    peak = resident_bytes(os.getpid())
    ctypes.CDLL(None).malloc_trim(0)
    loaded = resident_bytes(os.getpid())
    pieces, rng = SegmentCache(side.tokenizer), random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz     "
    while pieces.held_bytes < MOST_CACHED_BYTES - 100_000:
        pieces.encode("".join(rng.choices(letters, k=10_000)))
    held = resident_bytes(os.getpid())
    return {
        "tokenizer_just_read_mib": (peak - before) / MIB,
        "tokenizer_mib": (loaded - before) / MIB,
        "remembered_texts_mib": (held - loaded) / MIB,
    }


def of_an_index(hashes: int) -> dict[str, float]:
    """Return the MiB and bytes of `hashes` checkpoints and as many pages, published by the thousand."""
    before = resident_bytes(os.getpid())
    tables, rng = (PrefixTable(4 << 20), PrefixTable(4 << 20)), np.random.default_rng(2)
    for _ in range(0, hashes, 1000):
        for table in tables:
            table.add(0, rng.integers(1, 1 << 63, 1000, dtype=np.uint64))
    held = resident_bytes(os.getpid()) - before
    return {"index_mib": held / MIB, "bytes_a_hash": held / sum(each.entries for each in tables)}


def _alone(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gateway_memory", *arguments]
    sizes: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return sizes


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_memory", description=__doc__)
    parser.add_argument("--hashes", type=int, help="only an index of so many, in this process")
    parser.add_argument("--archive", type=Path, help="only this tokenizer, in this process")
    parsed = parser.parse_args(arguments)
    if parsed.hashes is not None:
        print(json.dumps(of_an_index(parsed.hashes)))
        return
    if parsed.archive is not None:
        print(json.dumps(of_texts(parsed.archive)))
        return
    record = {name: of_a_gateway(*options) / MIB for name, options in GATEWAYS.items()}
    with tempfile.TemporaryDirectory() as folder:
        data, size = packed_tokenizer(Path(folder))
        (archive := Path(folder, "packed")).write_bytes(data)
        record |= {"tokenizer_file_mib": size / MIB, **_alone("--archive", str(archive))}
    for hashes in (100_000, 1_000_000, 4_000_000):
        record |= {f"{name}_of_{hashes}": value for name, value in _alone("--hashes", str(hashes)).items()}
    record = {name: round(value, 1) for name, value in record.items()}
    rows = [f"| {name} | {value:g} |" for name, value in record.items()]
    lines = ["", "| what | value |", "| --- | --- |", *rows]
    write("gateway-memory", {"found": record}, lines)


if __name__ == "__main__":
    main()
