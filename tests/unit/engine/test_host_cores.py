"""Cores that a container may keep busy: those it may run on, or what its quota pays for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mamba_server.host_cores import usable_cores


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("told", "cores"),
    [("max 100000", 8), ("300000 100000", 3), ("350000 100000", 3), ("50000 100000", 1),
     ("1600000 100000", 8), ("", 8), ("what", 8), ("100000 0", 8)],
)  # fmt: skip
def test_a_quota_of_cgroup_version_2_counts_in_whole_cores(tmp_path: Path, told: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(told)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("400000", 4), ("20000", 1)])
def test_a_quota_of_cgroup_version_1_counts_alike(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


def test_without_a_cgroup_it_is_what_the_process_may_run_on(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == 8
