"""One step of the engine as the model sees it: the batch that `HybridModel.forward` computes.

The engine builds it from host integers; the model and its kernels never read a device tensor back. Layout of
the rows: first `decodes` sequences of one token each, then the prefill pieces, one after another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from mamba_kernels.packed_integers import send_together
from mamba_kernels.slot_plan import HostIntegers
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_server.model.replay import HostReplay

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class HostBatch:
    """The integers that describe one step, on the host (numpy int32). Reading them is free."""

    positions: IntArray
    """[T] absolute position of each token in its sequence"""
    token_sequence: IntArray
    """[T] sequence of each token"""
    query_start: IntArray
    """[S+1] first row of each sequence"""
    context_len: IntArray
    """[S] tokens with KV after this step, the new ones included"""
    slot_in: IntArray
    """[S] slot from which the state is read; -1 = zero state"""
    slot_out: IntArray
    """[S] live slot, which receives the final state"""
    decode_track: IntArray
    """[D] second slot for the state of a decode, or -1; drafts count as decodes, and have none"""
    table_row: IntArray
    """[S] row of each sequence in the page table"""
    kv_row: IntArray
    """[T] page * page_size + offset of the token's key and value"""
    chunk_start: IntArray
    """[Cn] first row (of the batch) of each chunk"""
    chunk_len: IntArray
    """[Cn] at most C"""
    chunk_sequence: IntArray
    """[Cn] sequence of the chunk, D..S; chunks of one sequence are consecutive"""
    chunk_rank: IntArray
    """[Cn] 0, 1, 2, … within the sequence's piece"""
    chunk_track: IntArray
    """[Cn] slot that receives the state at the chunk's end as a checkpoint, or -1"""
    logits_rows: IntArray
    """[L] rows whose logits are computed"""
    state_noise: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    """[T] `noise_words` by which the state after each token is rounded; empty unless states are float16"""
    replay: HostReplay | None = None
    """Drafts, which are the last ones of the D rows that decode, and accepted drafts that live slots lack;
    None = neither"""
    ring: IntArray | None = None
    """[3, D] lane of each row that decodes, number of inputs in it, and whether the row writes its state
    (`RingPlan`); None = all rows write their states"""

    def check(self, chunk_size: int, page_size: int, page_table: IntArray) -> None:
        """Raise ValueError if the arrays contradict each other or `page_table` [R, W]. Tests call this."""
        T, S, D = len(self.positions), len(self.context_len), len(self.decode_track)
        pieces = np.diff(self.query_start)
        _require(self.query_start[0] == 0 and self.query_start[-1] == T, "query_start spans the rows")
        _require(bool((pieces[:D] == 1).all() and (pieces > 0).all()), "decodes have one token, pieces some")
        _require(bool((self.token_sequence == np.repeat(np.arange(S), pieces)).all()), "token_sequence")
        last = self.query_start[1:] - 1
        _require(bool((self.positions[last] + 1 == self.context_len).all()), "context ends at the last token")
        _require(bool((self.slot_out > 0).all()), "the padding slot belongs to no sequence")
        covered = np.concatenate([self.chunk_start, [T]])
        _require(covered[0] == self.query_start[D], "chunks begin with the first piece")
        _require(bool((np.diff(covered) == self.chunk_len).all()), "chunks cover the pieces without gaps")
        _require(bool((self.chunk_len <= chunk_size).all()), "no chunk is longer than the chunk size")
        ends = self.chunk_start + self.chunk_len - 1
        for rows in (self.chunk_start, ends):
            matches = self.token_sequence[rows] == self.chunk_sequence
            _require(bool(matches.all()), "chunks do not cross sequences")
        first = (
            np.concatenate([[True], np.diff(self.chunk_sequence) != 0]) if len(ends) else np.array([], bool)
        )
        ranks = np.arange(len(ends)) - np.maximum.accumulate(np.where(first, np.arange(len(ends)), 0))
        _require(bool((ranks == self.chunk_rank).all()), "chunk_rank counts within the sequence")
        pages = (
            page_table[self.table_row[self.token_sequence], self.positions // page_size]
            if page_table.size
            else None
        )
        if pages is not None:
            rows = pages * page_size + self.positions % page_size
            _require(bool((rows == self.kv_row).all()), "kv_row follows from the page table")


COPIED_ARRAYS = ("positions", "query_start", "context_len", "table_row", "logits_rows", "state_noise")
"""Arrays of `HostBatch` that are copied to the device unchanged."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tensors that describe one step, on the model's device: int32, with the shapes of `HostBatch`."""

    tokens: int
    """T: number of new tokens."""
    decodes: int
    """D: number of sequences that decode; they come first."""
    sequences: int
    """S: number of all sequences."""
    chunk_size: int
    """C: number of tokens per chunk."""
    page_size: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    table_row: torch.Tensor
    logits_rows: torch.Tensor
    state_noise: torch.Tensor
    page: torch.Tensor
    """[T] page of each token's key and value"""
    offset: torch.Tensor
    """[T] offset of each token's key and value in its page"""
    page_table: torch.Tensor
    """[R, W] pages of all sequences, which stay on the device from step to step."""
    decode_slots: torch.Tensor
    """[4, D] `slot_in`, `slot_out`, `decode_track` and `state_noise` of the decodes; zeros without noise."""
    ring: torch.Tensor | None
    """[3, D] `HostBatch.ring`"""
    pieces: ChunkPlan | None
    """The chunks of all prefill pieces; None in a step that only decodes."""
    extras: Mapping[str, torch.Tensor]
    """Other integers that were copied with the step, by name; the model does not read them."""
    host: HostBatch

    @classmethod
    def from_host(
        cls,
        host: HostBatch,
        *,
        token_ids: torch.Tensor | IntArray,
        page_table: torch.Tensor,
        chunk_size: int,
        page_size: int,
        device: torch.device,
        segments: Iterable[int] = (),
        extras: Mapping[str, IntArray] | None = None,
    ) -> "ForwardBatch":
        """Copy all integers that layers read in this step to the device, in one buffer and one copy.

        `token_ids` are [T]: host integers are copied in the same buffer; a tensor on the device (the engine
        runs one step ahead of the sampled tokens) is used as it is, and so is `page_table`. `segments` are
        the numbers with which layers will call `pieces.segments`. `extras` are more integers, by name.
        """
        decodes, extras = len(host.decode_track), extras or {}
        page, offset = np.divmod(host.kv_row, page_size)
        noise = host.state_noise[:decodes] if len(host.state_noise) else np.zeros(decodes, np.int32)
        parts: dict[str, HostIntegers] = {name: getattr(host, name) for name in COPIED_ARRAYS}
        parts |= {"page": page, "offset": offset}
        parts["decode_slots"] = np.stack(
            [host.slot_in[:decodes], host.slot_out[:decodes], host.decode_track, noise]
        )
        if host.ring is not None:
            parts["ring"] = host.ring
        if isinstance(token_ids, np.ndarray):
            parts["token_ids"] = token_ids
        pieces = _pieces(host, chunk_size, device) if len(host.chunk_start) else None
        piece_integers = {} if pieces is None else pieces.integers(segments)
        tensors = send_together(
            {
                **parts,
                **{f"pieces {name}": array for name, array in piece_integers.items()},
                **{f"extras {name}": array for name, array in extras.items()},
            },
            device,
        )
        own = {name: tensors[name] for name in parts}
        ring = own.pop("ring", None)
        if isinstance(token_ids, torch.Tensor):
            own["token_ids"] = token_ids
        if pieces is not None:
            resident = {name: tensors[f"pieces {name}"] for name in piece_integers}
            piece_noise = own["state_noise"][decodes:] if len(host.state_noise) else None
            pieces = pieces.with_resident(resident, piece_noise)
        return cls(
            tokens=len(host.positions),
            decodes=decodes,
            sequences=len(host.context_len),
            chunk_size=chunk_size,
            page_size=page_size,
            page_table=page_table,
            ring=ring,
            pieces=pieces,
            extras={name: tensors[f"extras {name}"] for name in extras},
            host=host,
            **own,
        )


def _pieces(host: HostBatch, chunk_size: int, device: torch.device) -> ChunkPlan:
    """Plan the chunks of all prefill pieces, with rows and sequences counted from the first piece."""
    decodes = len(host.decode_track)
    return ChunkPlan.build(
        chunk_start=host.chunk_start - decodes,
        chunk_len=host.chunk_len,
        chunk_sequence=host.chunk_sequence - decodes,
        chunk_rank=host.chunk_rank,
        chunk_track=host.chunk_track,
        slot_in=host.slot_in[decodes:],
        slot_out=host.slot_out[decodes:],
        piece_start=host.query_start[decodes:] - decodes,
        chunk_size=chunk_size,
        device=device,
        noise=host.state_noise[decodes:] if len(host.state_noise) else None,
    )


def _require(condition: bool | np.bool_, rule: str) -> None:
    if not condition:
        raise ValueError(f"inconsistent batch: {rule}")
