"""The wheel with the compiled kernels: what pip reads of it, the same bytes each time, what is refused."""

import base64
import csv
import hashlib
import zipfile
from pathlib import Path

import pytest
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from release.errors import CannotRelease
from release.platform_wheel import write_platform_wheel

INFO = "mambaserve-0.1.0.dist-info"
LIBRARY = b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0memcpy\0"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel of one module, as hatchling writes them."""
    path = tmp_path / "mambaserve-0.1.0-py3-none-any.whl"
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"mamba_api/names.py,sha256=x,1\n{INFO}/WHEEL,sha256=x,1\n{INFO}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("mamba_api/names.py", ""), (f"{INFO}/WHEEL", about), (f"{INFO}/RECORD", record)):
            archive.writestr(zipfile.ZipInfo(name, (2026, 12, 1, 0, 0, 0)), text)
    return path


def library(folder: Path, content: bytes) -> Path:
    path = folder / "0123.so"
    path.write_bytes(content)
    return path


def test_pip_can_choose_it_and_find_each_file_as_recorded(wheel: Path, tmp_path: Path) -> None:
    written = write_platform_wheel(wheel, library(tmp_path, LIBRARY))
    tags = parse_wheel_filename(written.name)[3]
    assert tags == {Tag("py3", "none", "manylinux_2_34_x86_64")}
    with zipfile.ZipFile(written) as archive:
        about = archive.read(f"{INFO}/WHEEL").decode()
        assert "Root-Is-Purelib: false\nTag: py3-none-manylinux_2_34_x86_64\n" in about
        assert archive.read("mamba_kernels/cpu/shipped/0123.so") == LIBRARY
        rows = {name: row for name, *row in csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines())}
        assert set(rows) == set(archive.namelist())
        for name in (f"{INFO}/WHEEL", "mamba_kernels/cpu/shipped/0123.so"):
            content = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert rows[name] == [f"sha256={digest}", str(len(content))]
        assert {entry.date_time for entry in archive.infolist()} == {(2026, 12, 1, 0, 0, 0)}
    first = written.read_bytes()
    assert write_platform_wheel(wheel, library(tmp_path, LIBRARY)).read_bytes() == first


def test_a_library_that_needs_the_machines_own_c_plus_plus_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotRelease, match="needs a C\\+\\+ runtime"):
        write_platform_wheel(wheel, library(tmp_path, LIBRARY + b"GLIBCXX_3.4.30\0"))
    assert [path.name for path in tmp_path.glob("*.whl")] == [wheel.name]
