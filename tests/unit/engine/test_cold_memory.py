"""Cold memory moves to a file with the same bytes at the same addresses, or stays unchanged."""

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from mamba_kernels.cpu.library import Library, library
from mamba_server.engine.process_memory.cold_memory import is_worth_it, put_imports_aside
from mamba_server.engine.process_memory.cpu_threads import COUNT, NUMPY_COUNT
from mamba_server.engine.process_memory.memory_map import MemoryMapping, mappings, memory_map

MAPS = """\
1000000-3000000 rw-p 00000000 00:00 0                              [heap]
Anonymous:         20000 kB
4000000-4200000 rw-p 00000000 00:00 0
Anonymous:          1024 kB
5000000-5200000 rw-p 00000000 00:00 0
Anonymous:          1023 kB
6000000-a000000 rw-p 00000000 00:00 0
Anonymous:          2048 kB
b000000-b200000 r--p 00000000 00:00 0
Anonymous:          2048 kB
c000000-c200000 rwxp 00000000 00:00 0
Anonymous:          2048 kB
d000000-d200000 rw-s 00000000 00:00 0
Anonymous:          2048 kB
e000000-e200000 rw-p 00000000 fd:01 77                             /lib/libfirst.so.1.2
Anonymous:          2048 kB
f000000-f200000 rw-p 00000000 00:00 0                              [stack]
Anonymous:          2048 kB
"""
SIZE = 3 * (1 << 20) + mmap.PAGESIZE
"""Bytes of more than one piece, the last of them a page."""


@pytest.fixture
def kernels() -> Library:
    found = library()
    if found is None:
        pytest.skip("no C++ kernels here")
    return found


def test_private_memory_of_no_file_is_put_aside_where_it_is_large_and_in_use() -> None:
    chosen = [each.begin for each in mappings(MAPS.splitlines()) if is_worth_it(each)]
    assert chosen == [0x1000000, 0x4000000]


def _mapping_at(address: int) -> MemoryMapping:
    return next(each for each in memory_map() if each.begin <= address < each.end)


def _filled() -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE)
    memory.write(bytes(range(256)) * (SIZE // 256))
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_memory_keeps_its_bytes_and_is_in_no_ones_way(kernels: Library, tmp_path: Path) -> None:
    memory, begin = _filled()
    path = tmp_path / "aside"
    with path.open("w+b") as file:
        assert kernels.put_aside(file.fileno(), 0, begin, begin + SIZE) == SIZE
    there = _mapping_at(begin)
    assert (there.name, there.anonymous) == (str(path), 0)
    assert memory[:] == bytes(range(256)) * (SIZE // 256)
    # What is written is this process's alone.
    memory[5:10] = b"later"
    assert memory[:12] == bytes(range(5)) + b"later" + bytes((10, 11))
    assert path.read_bytes() == bytes(range(256)) * (SIZE // 256)


def test_without_room_on_the_disk_memory_stays_as_it_is(kernels: Library) -> None:
    memory, begin = _filled()
    with Path("/dev/full").open("wb") as full:
        assert kernels.put_aside(full.fileno(), 0, begin, begin + SIZE) == 0
    assert _mapping_at(begin).name == ""
    assert memory[:] == bytes(range(256)) * (SIZE // 256)


def test_the_memory_of_the_threads_own_variables_is_left_alone(kernels: Library, tmp_path: Path) -> None:
    errno = ctypes.CDLL(None).__errno_location
    errno.restype = ctypes.c_size_t
    own = _mapping_at(errno())
    with (tmp_path / "aside").open("w+b") as file:
        assert kernels.put_aside(file.fileno(), 0, own.begin, own.end) == 0
    assert _mapping_at(errno()).name == own.name


def test_files_in_memory_are_told_from_those_on_a_disk(kernels: Library) -> None:
    in_memory = Path("/dev/shm")
    if not in_memory.is_dir():
        pytest.skip("no tmpfs here")
    with tempfile.TemporaryFile(dir=in_memory) as file:
        assert not kernels.is_on_disk(file.fileno())
    assert not kernels.is_on_disk(-1)


def test_beside_another_thread_and_without_the_library_nothing_is_done(kernels: Library) -> None:
    assert put_imports_aside(None) == 0
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert put_imports_aside(kernels) == 0
    finally:
        done.set()
        other.join()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_imported_torch_is_smaller_by_half_and_computes_as_before(kernels: Library) -> None:
    code = """
import torch
from mamba_kernels.cpu.library import library
from mamba_server.engine.process_memory.cold_memory import put_imports_aside

def anonymous():
    lines = dict(line.split(":") for line in open("/proc/self/smaps_rollup").readlines()[1:])
    return int(lines["Anonymous"].split()[0]) << 10

def computed():
    torch.manual_seed(1)
    return torch.linalg.inv(torch.randn(50, 50)).softmax(0).sum(0)

before, one = anonymous(), computed()
aside = put_imports_aside(library())
after = anonymous()
assert torch.equal(one, computed())
print(before, aside, after)
"""
    # A second thread of a library would keep all in its place.
    environment = {**os.environ, COUNT: "1", NUMPY_COUNT: "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, aside, after = map(int, done.stdout.split())
    # What lies on a disk depends on where temporary files are kept.
    with tempfile.TemporaryFile() as file:
        assert (aside > 0) == kernels.is_on_disk(file.fileno())
    assert not aside or (aside > 0.5 * before and after < 0.5 * before)
