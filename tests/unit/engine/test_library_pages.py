"""Pages of libraries that only their loading read are given back, and no page that the loader wrote."""

import subprocess
import sys
from pathlib import Path

import pytest

from mamba_server.engine.process_memory import library_pages
from mamba_server.engine.process_memory.library_pages import is_unchanged
from mamba_server.engine.process_memory.memory_map import mappings, memory_map

MAPS = """\
1000-2000 r--p 00000000 fd:01 77                         /lib/libfirst.so.1.2
Rss:                   4 kB
Anonymous:             0 kB
2000-5000 r-xp 00001000 fd:01 77                         /lib/libfirst.so.1.2
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
5000-6000 r--p 00004000 fd:01 77                         /lib/libfirst.so.1.2
Rss:                   4 kB
Anonymous:             4 kB
6000-7000 rw-p 00005000 fd:01 77                         /lib/libfirst.so.1.2
Anonymous:             0 kB
7000-9000 rw-p 00000000 00:00 0
Anonymous:             0 kB
9000-a000 r--p 00000000 fd:01 78                         /models/model.safetensors
Anonymous:             0 kB
b000-c000 r-xp 00000000 fd:01 79                         /a folder/second.cpython-311-x86_64-linux-gnu.so
Anonymous:             0 kB
c000-d000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
"""


def test_only_what_cannot_be_written_and_has_not_been_is_dropped() -> None:
    dropped = [(each.begin, each.end) for each in mappings(MAPS.splitlines()) if is_unchanged(each)]
    assert dropped == [(0x1000, 0x2000), (0x2000, 0x5000), (0xB000, 0xC000)]


def test_where_the_kernel_does_not_tell_nothing_is_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library_pages, "memory_map", lambda: memory_map(tmp_path / "absent"))
    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(library_pages, "drop", lambda *place: dropped.append(place))
    library_pages.give_back_libraries()
    assert not dropped


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_smaller_by_most_of_its_libraries_and_computes_as_before() -> None:
    code = """
import torch
from mamba_server.engine.process_memory.library_pages import give_back_libraries

def of_files():
    lines = dict(line.split(":") for line in open("/proc/self/smaps_rollup").readlines()[1:])
    return int(lines["Rss"].split()[0]) - int(lines["Anonymous"].split()[0])

def computed():
    torch.manual_seed(1)
    return torch.linalg.inv(torch.randn(50, 50)).softmax(0).sum(0)

before, one = of_files(), computed()
give_back_libraries()
after, other = of_files(), computed()
assert torch.equal(one, other)
print(before, after)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < 0.3 * before, "kB of files in memory"
