"""`ScalingRecord`: one decision of the autoscaler, as `status.scaling.history` keeps it.

A record is the compressed JSON of the inputs and the result of one decision. Pure.
"""

import base64
import binascii
import zlib
from dataclasses import dataclass

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import ScalingDecision, decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import Observation

MAX_RECORD_CHARACTERS = 16_384
"""Largest length of an encoded record; a longer one is left out. Usual records have about 1,500
characters."""
MAX_JSON_BYTES = 1 << 20
"""Largest size of the JSON in a record."""


class RecordInvalid(ValueError):
    """A text that is no readable record; the message has the cause."""


class ScalingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with all of its inputs, from which it can be computed again."""

    config: AutoscalerConfig
    observation: Observation
    memory: AutoscalerMemory
    decision: ScalingDecision

    def to_json(self) -> bytes:
        """Return the JSON text, which is deterministic."""
        return msgspec.json.encode(self)

    def encode(self) -> str:
        """Return the text for `status.scaling.history`; empty if it does not fit there."""
        text = base64.b64encode(zlib.compress(self.to_json(), 9)).decode()
        return text if len(text) <= MAX_RECORD_CHARACTERS else ""

    def replayed(self) -> ScalingDecision:
        """Return the decision that the recorded inputs give now."""
        return decide(self.observation, self.config, self.memory)


def from_json(text: bytes | str) -> ScalingRecord:
    """Return the record in JSON text. Raises RecordInvalid."""
    try:
        return msgspec.json.decode(text, type=ScalingRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"not a recorded decision: {error}") from error


def from_text(text: str) -> ScalingRecord:
    """Return the record in a text of `status.scaling.history`. Raises RecordInvalid."""
    try:
        unpacker = zlib.decompressobj()
        json_text = unpacker.decompress(base64.b64decode(text, validate=True), MAX_JSON_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise RecordInvalid(f"not a recorded decision: {error}") from error
    return from_json(json_text)


@dataclass(frozen=True, slots=True)
class LatestDecision:
    """The autoscaler's last decision about one deployment, for the pass that carries it out."""

    desired: int
    """Number of engines in force when it was decided."""
    start: int
    """spec.replicas when it was decided."""
    decision: ScalingDecision
    record: str
    """Encoded record for the history; empty while the number stays."""
