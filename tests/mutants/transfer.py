"""Defects of transfers: a reader would use foreign bytes, or memory would never be freed."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="a reader does not compare checksums",
        keeps="No byte of a bundle is used unless all checksums agree.",
        where="mamba_transfer.client:TransferClient._receive",
        old="_hear(connection, Checksums, limit, len(digests)).digests != digests",
        new="_hear(connection, Checksums, limit, len(digests)) is None",
        tests=("tests/unit/transfer/test_transfers.py",),
    ),
    Mutant(
        name="a source answers Valid after the lease has ended",
        keeps="VALID is said only while the lease lives.",
        where="mamba_transfer.session:ReaderSession._handle",
        old="self._export is not None and self._export.lease.live",
        new="True",
        tests=("tests/unit/transfer/test_transfers.py",),
    ),
    Mutant(
        name="a lease that has ended can be renewed",
        keeps="A lease ends for good.",
        where="mamba_transfer.leases:Lease._still_live",
        old="self._over or self._clock() >= self._end",
        new="self._over",
        tests=("tests/unit/transfer/test_leases.py",),
    ),
    Mutant(
        name="a stopped reader holds its export for ever",
        keeps="An export ends with its lease, whatever its reader does.",
        where="mamba_transfer.session:ReaderSession._next",
        old="self._export is not None and not self._export.lease.live",
        new="False",
        tests=("tests/integration/transfer/test_struck_peers.py",),
    ),
    Mutant(
        name="a stopped peer holds a reader for ever",
        keeps="Every read and write has a deadline.",
        where="mamba_transfer.frames:Limit.check",
        old="self.clock() >= self.deadline",
        new="False",
        tests=("tests/unit/transfer/test_hostile_peers.py",),
    ),
    Mutant(
        name="an engine that was restarted serves exports of its earlier life",
        keeps="A message for another incarnation is answered Expired.",
        where="mamba_transfer.server:TransferServer._converse",
        old="hello.incarnation != self.incarnation",
        new="False",
        tests=("tests/unit/transfer/test_transfers.py",),
    ),
    Mutant(
        name="B of the window is taken from where x stands in the source's row",
        keeps="The parts of a window are sliced one by one.",
        where="mamba_transfer.slice_plan:_rows",
        old="offset += part.row_bytes",
        new="offset += 0 if part.name == 'window.x' else part.row_bytes",
        tests=("tests/unit/transfer/test_slice_plan.py",),
    ),
    Mutant(
        name="a part that no rank of the source has is left as it was",
        keeps="Every byte of a destination is covered, or the pair is refused.",
        where="mamba_transfer.slice_plan:_intervals",
        old="missing = rest",
        new="missing = []",
        tests=("tests/unit/transfer/test_slice_plan.py",),
    ),
    Mutant(
        name="memory is taken for the length that a header claims",
        keeps="A message costs no more memory than the bytes that arrived.",
        where="mamba_transfer.frames:Connection.receive_frame",
        old="min(_READ_BYTES, length - len(body))",
        new="length - len(body)",
        tests=("tests/unit/transfer/test_hostile_peers.py",),
    ),
)
