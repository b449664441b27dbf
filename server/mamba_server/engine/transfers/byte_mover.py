"""`KernelByteMover`: bytes of transfers moved by the C++ library, which computes their checksums on the way.

Other Python threads, such as the loop of the engine, run meanwhile. `start_transfers` creates one where the
library exists; otherwise Python moves the same bytes and computes the same checksums.
"""

import ctypes
import errno
import os
from array import array
from collections.abc import Sequence

import numpy as np

from mamba_kernels.cpu.library import Library, has_to_be_built, library
from mamba_kernels.cpu.structures import CheckedBytes
from mamba_transfer.transport import ByteMover


def byte_mover() -> ByteMover | None:
    """Return the mover of this process, or None where there is no library yet, or none at all.

    An engine on a CPU has built the library before. One on a GPU is not made to wait for a compiler.
    """
    if has_to_be_built() or (machine_code := library()) is None:
        return None
    return KernelByteMover(machine_code, wide=not machine_code.name.startswith("avx2"))


class KernelByteMover:
    """Moves bytes between a socket and memory by the functions of `machine_code`."""

    def __init__(self, machine_code: Library, *, wide: bool) -> None:
        """Use the functions of `machine_code`.

        `wide` says whether checksums may use vectors of 512 bits, where this CPU has them.
        """
        self._library, self._wide = machine_code, wide

    def begin(
        self, pieces: Sequence[memoryview], sizes: Sequence[int], *, sends: bool
    ) -> "MovingBytes | None":
        """Prepare to send `pieces`, or to fill them; return None for blocks of 240 bytes or less.

        Their checksum is another formula, and so few bytes gain nothing.
        """
        moving = MovingBytes(self._library, pieces, sizes, sends=sends, wide=self._wide)
        return moving if moving.begun else None


class MovingBytes:
    """Bytes that are being moved between a socket and memory. One thread uses it."""

    def __init__(
        self,
        machine_code: Library,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        *,
        sends: bool,
        wide: bool,
    ) -> None:
        self._library = machine_code
        self._memory = [np.frombuffer(piece, np.uint8) for piece in pieces if piece.nbytes]
        lengths = array("q", [each.nbytes for each in self._memory])
        self.left, length = sum(sizes), sum(lengths)
        if self.left != length:
            raise ValueError(f"pieces of {length} bytes are no blocks of {self.left}")
        addresses = array("q", [each.__array_interface__["data"][0] for each in self._memory])
        self._digests = array("Q", bytes(8 * len(sizes)))
        # Arrays of Python: those of numpy take longer to prepare, since one fetch has their code in no cache.
        self._arrays = (addresses, lengths, array("q", sizes), self._digests)
        call = CheckedBytes(*(each.buffer_info()[0] for each in self._arrays), len(sizes), sends, wide)
        self._bytes = machine_code.begin_checked_bytes(ctypes.addressof(call))

    @property
    def begun(self) -> bool:
        """Whether the library moves these bytes, and `close` has not been called."""
        return self._bytes is not None

    @property
    def digests(self) -> bytes:
        """Checksums of the blocks, once no byte is left: 8 bytes each, little-endian."""
        return self._digests.tobytes()

    def move(self, socket: int) -> int:
        """Move bytes for about 50 ms at most, and return their number; 0 = the peer has closed.

        Raises BlockingIOError if none has moved in that time, or another OSError.
        """
        assert self._bytes is not None
        moved = self._library.move_checked_bytes(self._bytes, socket)
        if moved < 0:
            if -moved == errno.EINTR:
                raise BlockingIOError
            raise OSError(-moved, os.strerror(-moved))
        self.left -= moved
        return moved

    def close(self) -> None:
        """Free the memory that the library keeps for these bytes."""
        if self._bytes is not None:
            self._library.end_checked_bytes(self._bytes)
            self._bytes = None
