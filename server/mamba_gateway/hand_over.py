"""Hand-overs: how the gateway reads and names states of prompts that move from one engine to another.

An engine reports at `/readyz` whether it can exchange states (`TransferReport`). A prefill engine answers a
request to export its state with a `HandOver`, and the gateway passes that in a header to the decode engine.
`peer_header` names an engine that has more of a prompt cached. Everything that an engine sends is checked
before it is put into a header. Pure.
"""

from typing import Annotated

import msgspec

from mamba_api.choices import Role
from mamba_edge.exchange.hand_over_headers import EXPORT, HAND_OVER_HEADER, SourceName, is_address, is_name

EXPORT_HEADERS = ((HAND_OVER_HEADER, EXPORT),)
"""Headers that make an engine compute the prompt and keep its state for another engine."""
MAX_ANSWER_BYTES = 64 * 1024
"""Maximum size in bytes of the answer of a prefill engine that is read."""
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]


class TransferReport(msgspec.Struct, frozen=True):
    """Holds what an engine reports about its exchange of states with other engines."""

    address: str
    """Address of the engine's transfer server, `IP:PORT`."""
    incarnation: str
    """Name of this run of the engine's process, which changes with every start."""
    role: Role = "unified"
    credits: _Tokens = 0
    """Number of states that the engine can receive now."""


class HandOver(msgspec.Struct, frozen=True):
    """Names the state of one prompt that a prefill engine keeps until the decode engine has read it."""

    address: str
    incarnation: str
    export: str = ""
    """Name of the export; "" = the prompt is too short to be handed over."""
    depth: _Tokens = 0
    """Number of prompt tokens that the state covers."""
    prompt_tokens: _Tokens = 0
    cached_tokens: _Tokens = 0
    """Number of prompt tokens that the prefill engine took from its cache."""
    lease_seconds: Annotated[float, msgspec.Meta(ge=0, lt=86_400)] = 0.0
    """Seconds for which the export is kept if no engine reads it."""

    def header(self) -> tuple[bytes, bytes]:
        """Return the header that names the export for the decode engine."""
        return SourceName(self.address, self.incarnation, self.depth, self.export).header()

    def peer_header(self) -> tuple[bytes, bytes]:
        """Return the header that names only the engine, after the export was read or has expired."""
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
    """Return an engine's report in the body of `/readyz`; None = the engine does not exchange states."""
    try:
        report = _decode_ready(body).transfer
    except _NOT_DECODED:
        return None
    return report if report is not None and _is_place(report.address, report.incarnation) else None


def hand_over_of(body: bytes) -> HandOver | None:
    """Return the hand-over in a prefill engine's answer; None = the answer contains none."""
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
