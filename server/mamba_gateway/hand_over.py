"""States of prompts that move between engines, as the gateway reads and names them.

An engine reports at `/readyz` whether it moves states (`TransferReport`). A prefill engine answers an export
with a `HandOver`, which the decode engine gets in a header; `peer_header` names an engine that has more of a
prompt cached. Everything that engines say is checked here before it becomes part of a header. Pure.
"""

from typing import Annotated

import msgspec

from mamba_api.choices import Role
from mamba_edge.exchange.hand_over_headers import EXPORT, HAND_OVER_HEADER, SourceName, is_address, is_name

EXPORT_HEADERS = ((HAND_OVER_HEADER, EXPORT),)
"""Headers with which an engine computes the prompt and holds its state for another engine."""
MAX_ANSWER_BYTES = 64 * 1024
"""Largest answer of a prefill engine that is read, in bytes."""
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]


class TransferReport(msgspec.Struct, frozen=True):
    """One engine as a source and a reader of states, as it reports itself."""

    address: str
    """Address of its transfer server."""
    incarnation: str
    """Name of the engine process, which changes with every start."""
    role: Role = "unified"
    credits: _Tokens = 0
    """Number of states that the engine can take now."""


class HandOver(msgspec.Struct, frozen=True):
    """The state of one prompt that a prefill engine holds for the engine that writes the answer."""

    address: str
    incarnation: str
    export: str = ""
    """Name of the export; "" = the prompt is too short to hand over."""
    depth: _Tokens = 0
    """Number of tokens that the state covers."""
    prompt_tokens: _Tokens = 0
    cached_tokens: _Tokens = 0
    """Tokens that the prefill engine did not have to compute."""
    lease_seconds: Annotated[float, msgspec.Meta(ge=0, lt=86_400)] = 0.0
    """Time for which the export is held while nobody reads it."""

    def header(self) -> tuple[bytes, bytes]:
        """Return the header that names the export for the engine that reads it."""
        return SourceName(self.address, self.incarnation, self.depth, self.export).header()

    def peer_header(self) -> tuple[bytes, bytes]:
        """Return the header that names the state without its export, which was read or has expired."""
        return peer_header(TransferReport(self.address, self.incarnation), self.depth)


class _Ready(msgspec.Struct, frozen=True):
    transfer: TransferReport | None = None


class _Answer(msgspec.Struct, frozen=True):
    handover: HandOver


_decode_ready = msgspec.json.Decoder(_Ready).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def peer_header(peer: TransferReport, depth: int) -> tuple[bytes, bytes]:
    """Return the header that names an engine which has the first `depth` tokens of the prompt cached."""
    return SourceName(peer.address, peer.incarnation, depth).header()


def transfer_report(body: bytes) -> TransferReport | None:
    """Return what a ready engine says of transfers at `/readyz`; None = it moves no states."""
    try:
        report = _decode_ready(body).transfer
    except _NOT_DECODED:
        return None
    return report if report is not None and _is_place(report.address, report.incarnation) else None


def hand_over_of(body: bytes) -> HandOver | None:
    """Return the hand-over in a prefill engine's answer; None = the answer holds none."""
    try:
        hand_over = _decode_answer(body).handover
    except _NOT_DECODED:
        return None
    if not hand_over.depth:
        return hand_over
    usable = _is_place(hand_over.address, hand_over.incarnation) and is_name(hand_over.export)
    return hand_over if usable else None


def _is_place(address: str, incarnation: str) -> bool:
    return is_address(address) and is_name(incarnation)
