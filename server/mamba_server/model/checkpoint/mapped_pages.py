"""`give_back`: memory of weights that were copied into another form, and that nobody reads any more.

A file that is mapped counts to the process that read it for as long as one tensor of it is in use, so that
packed weights would be in memory twice. The file's pages stay where the kernel caches files: it drops them
when it needs the room.
"""

import ctypes
import mmap
import sys

import torch

_MADV_NORMAL, _MADV_SEQUENTIAL, _MADV_DONTNEED = 0, 2, 4
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def give_back(rows: torch.Tensor) -> None:
    """Drop the whole pages of `rows` [n, ...], which lie one after the other and are not read again.

    Whoever does read them finds the file's bytes, or zeros where they are of no file. Without Linux, and of
    memory of other devices, nothing happens.
    """
    if rows.device.type != "cpu" or not rows.is_contiguous():
        return
    begin = -(-rows.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (rows.data_ptr() + rows.numel() * rows.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    drop(begin, end)


def drop(begin: int, end: int) -> None:
    """The same for the pages of [begin, end), two multiples of a page; without Linux nothing happens."""
    if _LIBC is None or end <= begin:
        return
    # Pages of a mapping that is read once, from its start on, are not taken for pages in use as they go: else
    # they would count to a container's working set. It can fail for memory that is locked, which then stays.
    for advice in (_MADV_SEQUENTIAL, _MADV_DONTNEED, _MADV_NORMAL):
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
