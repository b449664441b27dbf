"""CUDA graphs of decode steps, out of one pool of memory."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from mamba_server.engine.cuda_stream import CudaStream
from mamba_server.engine.step_graphs import GraphMemoryShort

Result = TypeVar("Result")


class CudaGraphs:
    """Graphs that are repeated on `stream`, one after another: so they may share their memory.

    `keep_free`: bytes of the device that are left to steps that are no graphs.
    """

    def __init__(self, stream: CudaStream, keep_free: int) -> None:
        self._stream = stream.stream
        self._pool = torch.cuda.graph_pool_handle()
        self._keep_free = keep_free

    def capture(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """As of `StepGraphs`."""
        device = self._stream.device
        torch.cuda.synchronize(device)
        # While capturing, the allocator cannot give back what earlier steps left with it. What it keeps
        # then is in use, or belongs to the graphs' pool, from which no other step can take.
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        if free < self._keep_free:
            raise GraphMemoryShort(f"{free >> 20} MiB are free, {self._keep_free >> 20} MiB are to stay free")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException as error:
                with suppress(RuntimeError):  # The capture is broken already: what broke it is told.
                    graph.capture_end()
                if isinstance(error, torch.OutOfMemoryError):
                    raise GraphMemoryShort(str(error)) from error
                raise
            graph.capture_end()

        def repeat() -> Result:
            graph.replay()
            return result

        return repeat
