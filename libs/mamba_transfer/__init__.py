"""Transfer of cached states between engines: layouts, slice plans, the protocol, and its transports.

An engine serves the checkpoints that it exports with `TransferServer`, reads those of other engines with
`TransferClient`, and finds out with `StateLayout.refusal` whether two engines can exchange states. This
package knows neither the cache of the engine, nor the tensors of the model, nor torch.
"""

from mamba_transfer.address import Address, Peer
from mamba_transfer.bundle import (
    Buffers,
    Segment,
    arena_buffers,
    bundle_bytes,
    page_segments,
    slot_segments,
)
from mamba_transfer.checksums import BlockChecksums, checksum
from mamba_transfer.client import TransferClient
from mamba_transfer.errors import IncompatibleLayouts, TransferError, UnusableAddress
from mamba_transfer.exports import ExportSource, OpenExport, StateHeir
from mamba_transfer.layout import StateLayout, TensorPart
from mamba_transfer.leases import Lease, LeaseTable
from mamba_transfer.messages import MOST_HOT, VERSION, Bequest, HotPrefix, Hottest, Wanted
from mamba_transfer.outcome import Outcome, PendingWriter, Verdict
from mamba_transfer.server import TransferServer
from mamba_transfer.slice_plan import SlicePlan, plan_of_pair

__all__ = [
    "MOST_HOT",
    "VERSION",
    "Address",
    "Bequest",
    "BlockChecksums",
    "Buffers",
    "ExportSource",
    "HotPrefix",
    "Hottest",
    "IncompatibleLayouts",
    "Lease",
    "LeaseTable",
    "OpenExport",
    "Outcome",
    "Peer",
    "PendingWriter",
    "Segment",
    "SlicePlan",
    "StateHeir",
    "StateLayout",
    "TensorPart",
    "TransferClient",
    "TransferError",
    "TransferServer",
    "UnusableAddress",
    "Verdict",
    "Wanted",
    "arena_buffers",
    "bundle_bytes",
    "checksum",
    "page_segments",
    "plan_of_pair",
    "slot_segments",
]
