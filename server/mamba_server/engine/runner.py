"""The device side of a step: moves its integers over, runs the model, samples, keeps what the next step needs.

`prepare` runs on the loop's thread and copies everything out of rows and holdings; what it returns runs on
the forward stream and reads nothing else of the host.
"""

from collections.abc import Callable

import numpy as np
import torch

from mamba_server.engine.core import StepResult
from mamba_server.engine.rows import Rows
from mamba_server.engine.sampler import Sampler
from mamba_server.engine.scheduler import Schedule
from mamba_server.engine.step_arrays import StepArrays, build
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch, HostBatch
from mamba_server.model.hybrid import HybridModel

_FIELDS = HostBatch.__dataclass_fields__


class ModelRunner:
    """One model on one device. `last_token[row]`: the token each row sampled last, for its next decode."""

    def __init__(
        self,
        model: HybridModel,
        cache: CacheViews,
        rows: Rows,
        *,
        chunk: int,
        page_size: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._cache = cache
        self._rows = rows
        self._chunk = chunk
        self._page_size = page_size
        self._device = device
        self._last_token = torch.zeros(rows.capacity, dtype=torch.int32, device=device)
        self._sampler = Sampler(rows.capacity, vocab_size, device)

    def prepare(self, schedule: Schedule) -> Callable[[], StepResult]:
        """Everything the step needs, taken now; the work to launch."""
        arrays = build(schedule, self._rows, self._chunk, self._page_size)
        return lambda: self._run(arrays, len(schedule.decodes))

    def _run(self, arrays: StepArrays, decodes: int) -> StepResult:
        with torch.inference_mode():
            host = HostBatch(**{name: getattr(arrays, name) for name in _FIELDS})
            batch = ForwardBatch.from_host(
                host,
                input_ids=arrays.input_ids,
                chunk_size=self._chunk,
                page_size=self._page_size,
                device=self._device,
            )
            sampled_rows = torch.from_numpy(arrays.rows[arrays.sampling]).to(self._device)
            if decodes:
                batch.input_ids[:decodes] = self._last_token[sampled_rows[:decodes]]
            logits = self._model.forward(batch, self._cache)
            tokens = logits[: len(arrays.sampling)].argmax(-1).to(torch.int32)
            self._last_token[sampled_rows] = tokens
            return StepResult(np.asarray(tokens.cpu()))
