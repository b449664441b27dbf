"""`give_back`: releases the memory of weights that were copied into another form and are not read again.

A mapped file counts as memory of the process as long as one tensor of it is in use, so that packed weights
would be in memory twice. The file's pages stay in the kernel's page cache, which drops them when memory is
short.
"""

import ctypes
import mmap
import sys

import torch

_MADV_NORMAL, _MADV_SEQUENTIAL, _MADV_DONTNEED = 0, 2, 4
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def give_back(rows: torch.Tensor) -> None:
    """Release the whole pages of `rows` [n, ...], which are not read again.

    A later read finds the file's bytes, or zeros in memory that is not mapped from a file. Does nothing if
    `rows` is not contiguous, on other devices, or without Linux.
    """
    if rows.device.type != "cpu" or not rows.is_contiguous():
        return
    begin = -(-rows.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (rows.data_ptr() + rows.numel() * rows.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    drop(begin, end)


def drop(begin: int, end: int) -> None:
    """Release the pages of [begin, end), two multiples of a page's size. Does nothing without Linux."""
    if _LIBC is None or end <= begin:
        return
    # With the advice that a mapping is read once in order, its pages do not become active when they are
    # dropped; they would count as a container's working set. The call fails for locked memory, which stays.
    for advice in (_MADV_SEQUENTIAL, _MADV_DONTNEED, _MADV_NORMAL):
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
