"""Remaining main memory: the lower limit of machine and container, never below zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from mamba_server.host_memory import available_bytes

MIB = 1 << 20


class Machine:
    """A made-up /proc and /sys."""

    def __init__(self, folder: Path, *, free: int = 1000 * MIB) -> None:
        self.meminfo, self.cgroup = folder / "meminfo", folder / "cgroup"
        self.cgroup.mkdir()
        self.meminfo.write_text(
            f"MemTotal: 99 kB\nMemFree: 5 kB\nMemAvailable:  {free // 1024} kB\nBuffers: 7 kB\n"
        )

    def limit(self, limit: str, used: str, stat: str | None = None) -> None:
        (self.cgroup / "memory.max").write_text(f"{limit}\n")
        (self.cgroup / "memory.current").write_text(f"{used}\n")
        if stat is not None:
            (self.cgroup / "memory.stat").write_text(stat)

    def available(self) -> int:
        return available_bytes(self.meminfo, self.cgroup)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_container_the_kernel_decides(machine: Machine) -> None:
    assert machine.available() == 1000 * MIB


def test_a_limit_wider_than_the_machine_is_none(machine: Machine) -> None:
    machine.limit(str(5000 * MIB), str(10 * MIB))
    assert machine.available() == 1000 * MIB


@pytest.mark.parametrize(("limit", "used"), [("max", "5"), ("", "5"), ("500", ""), ("-1", "5"), ("500", "x")])
def test_a_limit_that_says_no_number_is_none(machine: Machine, limit: str, used: str) -> None:
    machine.limit(limit, used)
    assert machine.available() == 1000 * MIB


def test_a_limit_without_its_use_is_none(machine: Machine) -> None:
    (machine.cgroup / "memory.max").write_text("500\n")
    assert machine.available() == 1000 * MIB


def test_file_pages_that_would_be_given_back_count_as_free(machine: Machine) -> None:
    machine.limit(str(600 * MIB), str(500 * MIB), f"anon {300 * MIB}\nfile 1\ninactive_file {150 * MIB}\n")
    assert machine.available() == 250 * MIB
    machine.limit(str(600 * MIB), str(500 * MIB), "anon 3\nactive_file 77\n")
    assert machine.available() == 100 * MIB


def test_a_container_over_its_limit_has_nothing_left_and_no_debt(machine: Machine) -> None:
    machine.limit(str(100 * MIB), str(130 * MIB))
    assert machine.available() == 0


def test_a_machine_that_tells_nothing_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        available_bytes(tmp_path / "meminfo", tmp_path)
