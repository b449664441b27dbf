"""`ScalingRecord`: one decision of the autoscaler as `status.scaling.history` keeps it.

A record is the compressed JSON of all that went into one decision, and of what came out. Pure.
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

LONGEST = 16_384
"""Characters of a record; a longer one is left out. It is about 1,500."""
LARGEST = 1 << 20
"""Bytes of JSON that a record may hold."""


class RecordInvalid(ValueError):
    """A record cannot be read; the message says why."""


class ScalingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision, whole."""

    config: AutoscalerConfig
    observation: Observation
    memory: AutoscalerMemory
    decision: ScalingDecision

    def to_json(self) -> bytes:
        """The same for the same decision, always."""
        return msgspec.json.encode(self)

    def encode(self) -> str:
        """For `status.scaling.history`; empty if it does not fit there."""
        text = base64.b64encode(zlib.compress(self.to_json(), 9)).decode()
        return text if len(text) <= LONGEST else ""

    def replayed(self) -> ScalingDecision:
        """The decision, made again."""
        return decide(self.observation, self.config, self.memory)


def from_json(text: bytes | str) -> ScalingRecord:
    """Raises RecordInvalid."""
    try:
        return msgspec.json.decode(text, type=ScalingRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"not a recorded decision: {error}") from error


def from_text(text: str) -> ScalingRecord:
    """Of `status.scaling.history`. Raises RecordInvalid."""
    try:
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(base64.b64decode(text, validate=True), LARGEST)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise RecordInvalid(f"not a recorded decision: {error}") from error
    return from_json(found)


@dataclass(frozen=True, slots=True)
class LatestDecision:
    """What the autoscaler last decided about one deployment."""

    asked: int
    """Engines that were asked for."""
    start: int
    """spec.replicas at that time."""
    decision: ScalingDecision
    record: str
    """For the history; empty while the number stays."""
