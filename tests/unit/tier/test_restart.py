"""A store starts again: after an end, after a kill at any point, and beside another process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bundle_writer
from bundle_world import PATIENCE, SHAPE, audit, bundle_files, disk_store, put, resumed, stored, tokens
from bundle_writer import PATHS
from mamba_tier.bundle_shape import StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.disk_folder import VERSION_FILE
from mamba_tier.errors import DirectoryBusy, DirectoryForeign, DirectoryUnusable
from mamba_tier.outcomes import PutOutcome


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program that stores bundles, and end it."""
    paths = [path for path in sys.path if path]
    process = subprocess.Popen(
        [sys.executable, str(bundle_writer.__file__), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_bundles_outlive_the_store(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    for depth in (8, 40, 72):
        stored(store, tokens(depth))
    before = store.status().tiers["disk"]
    store.close()
    store = disk_store(tmp_path)
    assert store.status().tiers["disk"] == before
    assert [resumed(store, tokens(depth)) for depth in (7, 8, 41, 100)] == [0, 8, 40, 72]
    assert put(store, tokens(72)) is PutOutcome.KNOWN
    audit(store, tmp_path)
    store.close()


def test_what_host_memory_has_is_saved_before_an_end(tmp_path: Path) -> None:
    store = BundleStore(SHAPE, StoreSettings(1 << 20, 1 << 20, tmp_path, 1 << 20))
    for seed in range(6):
        stored(store, tokens(8 + 8 * seed, seed))
    assert store.status().tiers["disk"].records == 0
    assert store.save(PATIENCE)
    assert store.status().tiers["disk"].records == 6
    stored(store, tokens(8, 9))
    audit(store, tmp_path)
    store.close()
    store = disk_store(tmp_path)
    assert [resumed(store, tokens(60, seed)) for seed in (*range(6), 9)] == [8, 16, 24, 32, 40, 48, 8]
    store.close()


def test_a_store_without_a_disk_saves_nothing() -> None:
    store = BundleStore(SHAPE, StoreSettings(1 << 20, staging_bytes=1 << 20))
    stored(store, tokens(8))
    assert not store.save(PATIENCE)
    assert resumed(store, tokens(8)) == 8
    store.close()


def test_the_most_valuable_bundles_are_saved_where_not_all_fit(tmp_path: Path) -> None:
    store = BundleStore(SHAPE, StoreSettings(1 << 20, 26 << 10, tmp_path, 1 << 20))
    for seed, depth in enumerate([12, 4, 12, 8]):
        stored(store, tokens(depth, seed))
    for _ in range(3):
        assert resumed(store, tokens(12, 2)) == 12
    store.save(PATIENCE)
    assert resumed(store, tokens(12, 2)) == 12
    assert resumed(store, tokens(4, 1)) in (0, 4)
    store.close()


def test_records_that_are_forced_to_the_device_are_the_same(tmp_path: Path) -> None:
    for sync in (True, False):
        store = BundleStore(SHAPE, StoreSettings(0, 1 << 20, tmp_path, 1 << 20, sync=sync))
        stored(store, tokens(40))
        assert resumed(store, tokens(40)) == 40
        assert store.status().counters["accepted"] == sync
        store.close()


def test_a_start_reads_headers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk_store(tmp_path)
    for depth in (8, 40, 72):
        stored(store, tokens(depth))
    store.close()
    read = 0
    pread = os.pread

    def counted(descriptor: int, length: int, start: int) -> bytes:
        nonlocal read
        raw = pread(descriptor, length, start)
        read += len(raw)
        return raw

    monkeypatch.setattr(os, "pread", counted)
    store = disk_store(tmp_path)
    assert read == 4096 * len(bundle_files(tmp_path))
    store.close()


def test_the_least_recently_used_go_first_after_a_restart(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    for seed in range(4):
        stored(store, tokens(8, seed))
    assert resumed(store, tokens(8, 0)) == 8
    used = store.status().tiers["disk"].used_bytes
    store.close()
    for seed, file in enumerate(sorted(bundle_files(tmp_path), key=lambda path: path.name[17:])):
        os.utime(file, (seed + 1, 1 if seed else 100))
    store = disk_store(tmp_path, disk_bytes=used)
    stored(store, tokens(8, 9))
    assert resumed(store, tokens(8, 0)) == 8
    assert resumed(store, tokens(8, 1)) == 0
    store.close()


def test_a_smaller_budget_holds_from_the_start(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    for seed in range(8):
        stored(store, tokens(24, seed))
    store.close()
    store = disk_store(tmp_path, disk_bytes=40 << 10)
    assert store.drain(PATIENCE)
    audit(store, tmp_path)
    assert store.status().tiers["disk"].records > 0
    store.close()


@pytest.mark.slow
def test_a_kill_at_any_system_call_leaves_no_wrong_bundle_and_no_litter(tmp_path: Path) -> None:
    with program("killed", str(tmp_path)) as process:
        process.communicate()
        assert process.returncode == 0
    directories = list(tmp_path.iterdir())
    assert len(directories) > 40
    restored = set()
    for directory in directories:
        store = disk_store(directory, disk_bytes=bundle_writer.DISK_BYTES)
        assert store.drain(PATIENCE)
        assert store.status().counters["corrupt"] == 0
        found = {(seed, resumed(store, tokens(depth, seed))) for seed, depth in PATHS}
        restored |= found
        audit(store, directory)
        assert not [path for path in directory.iterdir() if path.name.endswith(".temporary")]
        stored(store, tokens(12, seed=50))
        assert resumed(store, tokens(12, seed=50)) == 12
        store.close()
    assert len(restored) > 4


def test_a_directory_belongs_to_one_process_until_it_dies(tmp_path: Path) -> None:
    with program("hold", str(tmp_path)) as process:
        assert process.stdout is not None
        assert "open\n" in iter(process.stdout.readline, "")
        with pytest.raises(DirectoryBusy, match=str(process.pid)):
            disk_store(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        store = disk_store(tmp_path)
        stored(store, tokens(8))
        with pytest.raises(DirectoryBusy):
            disk_store(tmp_path)
        assert resumed(store, tokens(8)) == 8
        store.close()


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DirectoryForeign, match=r"thesis\.txt"):
        disk_store(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    (tmp_path / VERSION_FILE).write_text("of another program")
    with pytest.raises(DirectoryForeign):
        disk_store(tmp_path)


def test_bundles_of_another_format_are_removed(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    stored(store, tokens(40))
    store.close()
    (tmp_path / VERSION_FILE).write_text("mambaserve bundles 999\n")
    (tmp_path / "notes.txt").write_text("of somebody else")
    store = disk_store(tmp_path)
    assert store.lookup(tokens(40), "") is None
    assert bundle_files(tmp_path) == []
    assert (tmp_path / "notes.txt").exists()
    stored(store, tokens(40))
    store.close()
    store = disk_store(tmp_path)
    assert resumed(store, tokens(40)) == 40
    store.close()


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryUnusable, match="file"):
        disk_store(tmp_path / "file")
