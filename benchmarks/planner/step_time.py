"""Duration of a step on one GPU: a roofline, built from other parts than the planner's estimate.

The matrices of a step read their weights once and compute for all of its tokens, whichever takes longer;
then each decoded row reads and writes its state and reads its keys and values, each piece of a prompt reads
and writes a state, each checkpoint is one more write of a state. Overlapping steps do not shorten any. Pure.
"""

from dataclasses import dataclass

from mamba_planner.arithmetic import active_parameters, attention_ratio, prefill_work
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.model_config import ModelConfig
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.engine.sequences.schedule import Schedule

SPEEDS = ((150 << 30, 6.0e12), (90 << 30, 3.6e12), (0, 2.4e12))
"""Bytes of memory from which a GPU moves so many a second, about three quarters of what is printed on it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Throughput of a GPU. The planner assumes 200 operations a byte; GPUs in use have 150 to 300."""

    bytes: float
    operations_per_byte: float
    step_seconds: float = 0.0005
    """Fixed seconds of every step: launches and sampling."""

    @classmethod
    def with_memory(cls, size: int, operations_per_byte: float) -> "Gpu":
        """Return a GPU with that many bytes of memory: larger ones also read it faster."""
        return cls(next(speed for least, speed in SPEEDS if size >= least), operations_per_byte)


class StepTime:
    """Seconds of the steps of one model under one plan."""

    def __init__(self, model: ModelConfig, plan: MemoryPlan, gpu: Gpu) -> None:
        self._gpu = gpu
        self._always, self._experts = active_parameters(model)
        moe = model.moe
        self._share = min(1.0, moe.experts_per_token / moe.experts) if moe is not None else 0.0
        self._per_parameter = plan.weights_bytes / max(model.parameters, 1)
        self._attention = attention_ratio(model)
        self._state, self._kv = plan.state_bytes, plan.kv_bytes_per_token

    def of(self, schedule: Schedule, batch: PersistentBatch) -> float:
        """Return the seconds of the step; `batch` is in the state at the launch."""
        gpu, tokens = self._gpu, schedule.tokens
        touched = 1 - (1 - self._share) ** tokens
        read = (self._always + self._experts * touched) * self._per_parameter
        work = len(schedule.decodes) + sum(
            prefill_work(piece.start, piece.stop, self._attention) for piece in schedule.pieces
        )
        computed = 2 * (self._always + self._experts * self._share) * work / gpu.operations_per_byte
        written = sum(len(piece.checkpoints) for piece in schedule.pieces) + int(
            (schedule.decode_track > 0).sum()
        )
        moved = (2 * (len(schedule.decodes) + len(schedule.pieces)) + written) * self._state
        moved += self._kv * int(batch.depth[schedule.decode_rows].sum())
        return gpu.step_seconds + (max(read, computed) + moved) / gpu.bytes
