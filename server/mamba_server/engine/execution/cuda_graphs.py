"""CUDA graphs of decode steps, in one pool of memory."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from mamba_kernels.device_errors import lacks_memory
from mamba_server.engine.execution.cuda_stream import CudaStream
from mamba_server.engine.execution.step_graphs import GraphMemoryShort

Result = TypeVar("Result")


class CudaGraphs:
    """Graphs that run on `stream`, one after another, so that they may share their memory.

    `keep_free`: bytes of the device that are left to steps without a graph.
    """

    def __init__(self, stream: CudaStream, keep_free: int) -> None:
        self._stream = stream.stream
        self._pool = torch.cuda.graph_pool_handle()
        self._keep_free = keep_free

    def capture(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Capture `work` as `StepGraphs` specifies. Stream and allocator survive a failed capture.

        Raises GraphMemoryShort, and RuntimeError for work that cannot be captured.
        """
        device = self._stream.device
        torch.cuda.synchronize(device)
        # While capturing, the allocator cannot give back memory that earlier steps left with it. Memory that
        # it keeps then is in use, or belongs to the graphs' pool, from which no other step can take.
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        if free < self._keep_free:
            raise GraphMemoryShort(f"{free >> 20} MiB are free, {self._keep_free >> 20} MiB are to stay free")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                result = work()
                graph.capture_end()
            except BaseException as error:
                self._abandon(graph)
                if lacks_memory(error):
                    raise GraphMemoryShort(str(error)) from error
                raise

        def repeat() -> Result:
            graph.replay()
            return result

        return repeat

    def begin_anew(self) -> None:
        """Take another pool: torch abandons a pool whose last graph is gone, and does not reuse it."""
        self._pool = torch.cuda.graph_pool_handle()

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End an unfinished capture; each part fails if there is nothing to end."""
        with suppress(RuntimeError):
            graph.capture_end()
        index = self._stream.device.index
        with suppress(RuntimeError):
            # A broken capture ends with an error, after which torch leaves its allocator in capture mode: it
            # would give nothing back to the device any more. Torch itself ends this mode in the same way in
            # `use_mem_pool`.
            torch._C._cuda_endAllocateToPool(index, self._pool)  # noqa: SLF001
            torch._C._cuda_releasePool(index, self._pool)  # noqa: SLF001
        self.begin_anew()
