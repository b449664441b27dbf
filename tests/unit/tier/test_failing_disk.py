"""A disk that fails or is full switches its tier off, with one line in the log, and nothing else."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bundle_world import (
    PATIENCE,
    SHAPE,
    audit,
    bundle_files,
    disk_store,
    put,
    restore,
    resumed,
    stored,
    tokens,
)
from mamba_tier.bundle_shape import StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.errors import DirectoryUnusable
from mamba_tier.outcomes import PutOutcome, ReadOutcome, TierState


@contextmanager
def largest_file(count: int) -> Iterator[None]:
    """Let the system refuse larger files to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Let a system call fail for files of bundles, as it does on a broken disk."""
    original = getattr(os, name)

    def call(target: object, *arguments: object, **named: object) -> object:
        path = target if isinstance(target, str | Path) else os.readlink(f"/proc/self/fd/{target}")
        if ".bundle" in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return original(target, *arguments, **named)

    monkeypatch.setattr(os, name, call)


def assert_off(store: BundleStore, lines: list[dict[str, object]], reason: str) -> None:
    assert store.drain(PATIENCE)
    disk = store.status().tiers["disk"]
    assert (disk.state, disk.reason, disk.records, disk.used_bytes) == (TierState.OFF, reason, 0, 0)
    assert [line["reason"] for line in lines if line["log_level"] == "error"] == [reason]


def test_a_file_that_the_system_refuses_switches_the_tier_off(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    stored(store, tokens(8))
    with capture_logs() as lines:
        with largest_file(2000):
            for seed in range(1, 4):
                put(store, tokens(8, seed))
                assert store.drain(PATIENCE)
        assert_off(store, lines, os.strerror(errno.EFBIG))  # type: ignore[arg-type]
    assert put(store, tokens(8, 9)) is PutOutcome.OFF
    assert store.lookup(tokens(8), "") is None
    store.close()
    # Nothing half written is left, and what was stored before is found again.
    store = disk_store(tmp_path)
    assert resumed(store, tokens(8)) == 8
    assert len(bundle_files(tmp_path)) == 1
    audit(store, tmp_path)
    store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "writev", "rename"])
def test_no_error_of_a_write_gets_further_than_its_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    store = BundleStore(SHAPE, StoreSettings(16 << 10, 1 << 20, tmp_path, staging_bytes=1 << 20))
    failing(monkeypatch, call, code)
    with capture_logs() as lines:
        for seed in range(8):
            assert put(store, tokens(24, seed)) is PutOutcome.ACCEPTED
            assert store.drain(PATIENCE)
        assert_off(store, lines, os.strerror(code))  # type: ignore[arg-type]
    # The host tier goes on.
    assert resumed(store, tokens(24, 7)) == 24
    audit(store)
    store.close()


def test_an_error_of_a_read_switches_the_tier_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk_store(tmp_path)
    stored(store, tokens(40))
    match = store.lookup(tokens(40), "")
    assert match is not None
    with capture_logs() as lines, monkeypatch.context() as broken:
        failing(broken, "preadv", errno.EIO)
        assert restore(store, match, tokens(40)) is ReadOutcome.GONE
        assert_off(store, lines, os.strerror(errno.EIO))  # type: ignore[arg-type]
    assert store.lookup(tokens(40), "") is None
    store.close()
    store = disk_store(tmp_path)
    assert resumed(store, tokens(40)) == 40
    store.close()


def test_a_file_that_cannot_be_read_at_the_start_counts_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk_store(tmp_path)
    stored(store, tokens(40))
    store.close()
    files = len(bundle_files(tmp_path))
    with monkeypatch.context() as broken:
        failing(broken, "open", errno.EIO)
        store = disk_store(tmp_path)
    assert store.status().counters["corrupt"] == files
    assert store.lookup(tokens(40), "") is None
    assert store.drain(PATIENCE)
    assert bundle_files(tmp_path) == []
    stored(store, tokens(40))
    assert store.lookup(tokens(40), "") is not None
    store.close()


def test_a_directory_that_cannot_be_listed_is_refused_and_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_store(tmp_path).close()

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "scandir", refuse)
        with pytest.raises(DirectoryUnusable, match="choose a directory that can be read"):
            disk_store(tmp_path)
    disk_store(tmp_path).close()


def test_a_failing_removal_switches_the_tier_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk_store(tmp_path, disk_bytes=9000)
    stored(store, tokens(8))
    failing(monkeypatch, "unlink", errno.EIO)
    with capture_logs() as lines:
        assert put(store, tokens(8, 1)) is PutOutcome.ACCEPTED
        assert_off(store, lines, os.strerror(errno.EIO))  # type: ignore[arg-type]
    store.close()


def test_space_is_freed_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 60 << 10
    store = disk_store(tmp_path, disk_bytes=budget)
    rename, largest = os.rename, 0

    def counted(source: object, target: object) -> None:
        nonlocal largest
        rename(source, target)  # type: ignore[call-overload]
        blocks = sum(path.stat().st_blocks for path in tmp_path.iterdir() if ".bundle" in path.name)
        largest = max(largest, 512 * blocks)

    monkeypatch.setattr(os, "rename", counted)
    for seed in range(12):
        stored(store, tokens(8 + 4 * seed, seed))
    assert budget // 2 < largest <= budget
    audit(store, tmp_path)
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system")
def test_a_full_file_system_switches_the_tier_off(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        store = disk_store(tmp_path)
        with capture_logs() as lines:
            for seed in range(30):
                put(store, tokens(40, seed))
                assert store.drain(PATIENCE)
            assert_off(store, lines, os.strerror(errno.ENOSPC))  # type: ignore[arg-type]
        store.close()
        store = disk_store(tmp_path, disk_bytes=60 << 10)
        found = [resumed(store, tokens(40, seed)) for seed in range(30)]
        assert sum(found) > 0
        audit(store, tmp_path)
        store.close()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
