"""A damaged record is noticed, deleted and never returned, whichever byte is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from bundle_world import (
    PATIENCE,
    SHAPE,
    audit,
    bundle_files,
    disk_store,
    pages_of,
    put,
    restore,
    resumed,
    state_of,
    stored,
    tokens,
)
from mamba_tier.bundle_shape import BundleShape, StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.outcomes import PutOutcome, ReadOutcome
from mamba_tier.record_header import decoded, encoded

SMALL = BundleShape("model", "layout", page_size=4, state_bytes=40, page_bytes=24, most_block_tokens=8)
DEPTH = 12


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a directory with one record and one block."""
    store = disk_store(tmp_path / "bundles", shape=SMALL)
    stored(store, tokens(DEPTH), shape=SMALL)
    store.close()
    assert len(bundle_files(tmp_path / "bundles")) == 2
    return tmp_path / "bundles"


def outcome_of(directory: Path, contents: dict[Path, bytes]) -> ReadOutcome | None:
    """Open a store with these files and read the bundle; None = it is not found."""
    for file in bundle_files(directory):
        file.unlink()
    for file, raw in contents.items():
        file.write_bytes(raw)
    store = disk_store(directory, shape=SMALL)
    match = store.lookup(tokens(DEPTH), "")
    outcome = None if match is None else restore(store, match, tokens(DEPTH), shape=SMALL)
    if outcome is not ReadOutcome.VALID:
        assert store.status().counters["corrupt"] == 1
        assert store.lookup(tokens(DEPTH), "") is None
        assert store.drain(PATIENCE)
        assert len(bundle_files(directory)) < len(contents)
    store.close()
    return outcome


def test_every_flipped_byte_is_noticed(recorded: Path) -> None:
    contents = {file: file.read_bytes() for file in bundle_files(recorded)}
    assert outcome_of(recorded, contents) is ReadOutcome.VALID
    for file, raw in contents.items():
        # Headers are tested byte by byte below.
        for place in (*range(0, 4096, 93), *range(4096, len(raw))):
            damaged = raw[:place] + bytes([raw[place] ^ 1 << place % 8]) + raw[place + 1 :]
            assert outcome_of(recorded, {**contents, file: damaged}) is not ReadOutcome.VALID, place


def test_every_truncation_is_noticed(recorded: Path) -> None:
    contents = {file: file.read_bytes() for file in bundle_files(recorded)}
    for file, raw in contents.items():
        for length in (*range(0, 4096, 93), *range(4096, len(raw))):
            assert outcome_of(recorded, {**contents, file: raw[:length]}) is None, length
        assert outcome_of(recorded, {**contents, file: raw + b"x"}) is None


def test_the_header_notices_each_flipped_bit(recorded: Path) -> None:
    for file in bundle_files(recorded):
        raw = file.read_bytes()[:4096]
        header = decoded(raw)
        assert header is not None
        assert encoded(header) == raw
        for place in range(len(raw)):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << place % 8
            assert decoded(bytes(damaged)) is None, place


@pytest.mark.parametrize("which", [0, 1], ids=["first file", "second file"])
@pytest.mark.parametrize("place", [5, 100, 4000, 4096, -1])
def test_damage_under_an_open_store_is_noticed_and_repaired(recorded: Path, place: int, which: int) -> None:
    store = disk_store(recorded, shape=SMALL)
    file = bundle_files(recorded)[which]
    raw = bytearray(file.read_bytes())
    raw[place] ^= 4
    file.write_bytes(raw)
    match = store.lookup(tokens(DEPTH), "")
    assert match is not None
    assert restore(store, match, tokens(DEPTH), shape=SMALL) is ReadOutcome.CORRUPT
    assert store.lookup(tokens(DEPTH), "") is None
    # The same bundle repairs the store when it comes again.
    stored(store, tokens(DEPTH), shape=SMALL)
    match = store.lookup(tokens(DEPTH), "")
    assert match is not None
    assert restore(store, match, tokens(DEPTH), shape=SMALL) is ReadOutcome.VALID
    audit(store, recorded)
    store.close()


def test_damage_in_host_memory_is_noticed() -> None:
    store = BundleStore(SHAPE, StoreSettings(host_bytes=1 << 20, staging_bytes=1 << 20))
    stored(store, tokens(40))
    record = store._host.records.copy().popitem()[1]
    store._host.views(record, 10)[0][5] ^= 1
    match = store.lookup(tokens(40), "")
    assert match is not None
    assert restore(store, match, tokens(40)) is ReadOutcome.CORRUPT
    assert store.lookup(tokens(40), "") is None
    audit(store)
    store.close()


def test_a_damaged_block_leaves_what_lies_behind_it(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    stored(store, tokens(64))
    first = next(block for block in store._disk.blocks.values() if block.depth == 16)  # type: ignore[union-attr]
    path = tmp_path / str(first.place)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert resumed(store, tokens(64)) == 0
    assert store.status().counters["corrupt"] == 1
    assert store.lookup(tokens(64), "", base=12) is None
    assert resumed(store, tokens(64), base=16) == 64
    # Only what is missing is asked for again.
    assert store.missing_from(tokens(64), "") == 0
    stored(store, tokens(64))
    assert resumed(store, tokens(64)) == 64
    audit(store, tmp_path)
    store.close()


def test_a_removed_file_is_a_miss(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    stored(store, tokens(8))
    bundle_files(tmp_path)[0].unlink()
    match = store.lookup(tokens(8), "")
    assert match is not None
    assert restore(store, match, tokens(8)) is ReadOutcome.GONE
    assert store.lookup(tokens(8), "") is None
    assert put(store, tokens(8)) is PutOutcome.ACCEPTED
    assert store.drain(PATIENCE)
    assert resumed(store, tokens(8)) == 8
    store.close()


def test_a_file_under_the_name_of_another_is_damage(recorded: Path) -> None:
    store = disk_store(recorded, shape=SMALL)
    stored(store, tokens(4, seed=1), shape=SMALL)
    store.close()
    files = bundle_files(recorded)
    same_size = [file for file in files if file.stat().st_size == files[0].stat().st_size]
    raw = files[0].read_bytes()
    for file in same_size[1:] or files[1:]:
        file.write_bytes(raw)
    store = disk_store(recorded, shape=SMALL)
    assert store.status().counters["corrupt"] >= 1
    for seed in (0, 1):
        match = store.lookup(tokens(DEPTH, seed), "")
        if match is not None:
            assert restore(store, match, tokens(DEPTH, seed), shape=SMALL) is ReadOutcome.VALID
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "other"},
        {"layout": "other"},
        {"page_size": 2},
        {"state_bytes": 41},
        {"page_bytes": 25},
        {"most_block_tokens": 16},
    ],
)
def test_records_of_another_shape_are_removed_at_the_start(recorded: Path, change: dict[str, object]) -> None:
    store = disk_store(recorded, shape=replace(SMALL, **change))  # type: ignore[arg-type]
    assert store.lookup(tokens(DEPTH), "") is None
    assert store.drain(PATIENCE)
    assert store.status().counters["stale"] >= 1
    assert bundle_files(recorded) == []
    assert store.status().tiers["disk"].used_bytes == 0
    store.close()


def test_the_bundles_of_the_tests_differ_in_every_prefix() -> None:
    assert len({state_of(tokens(depth)) for depth in range(4, 80, 4)}) == 19
    assert pages_of(tokens(8))[300:] == pages_of(tokens(8), 4) != pages_of(tokens(8))[:300]
