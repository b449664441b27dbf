"""Device work as a CUDA graph has it: operators and launches with the memory that they read and write.

A graph can be had of work that reads no tensor from Python and that issues the same every time. Here, without
a GPU, the first is an error while recording, the second is compared, and a repetition does what a graph's
does: what was issued, on the memory of then, with nothing of Python between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from mamba_kernels.triton_support import KernelCall
from testmodels.no_sync import no_sync

Result = TypeVar("Result")
Described = tuple[Any, ...]
_STARTS_NOTHING = ("empty", "new_empty", "empty_like", "empty_strided")


@dataclass(frozen=True)
class _Operator:
    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    result: Any

    def repeat(self) -> None:
        again = self.function(*self.arguments, **self.named)
        if self.function._schema.is_mutable:
            return
        for kept, new in zip(tree_leaves(self.result), tree_leaves(again), strict=True):
            if isinstance(kept, torch.Tensor):
                kept.copy_(new)


class RecordedWork(TorchDispatchMode):
    """`with RecordedWork() as work: ...`; all tensors that were met are kept, so no address is used twice."""

    def __init__(self, *, compute: bool = True) -> None:
        """Prepare the recording.

        `compute`: also run the kernels; without it the work of thousands of programs is described in no time.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.issued: list[_Operator | KernelCall] = []
        self.made: list[torch.Tensor] = []
        """By what was recorded, in order: memory of the work's own."""
        self.described: list[Described] = []
        """Issued work: names, constants, shapes, strides, numbers; its own memory by creation time, other
        memory by address."""
        self._names: dict[int, str] = {}
        self._run, self._compute = KernelCall.run, compute
        self._guard = no_sync()

    def __enter__(self) -> Self:
        recorder = self

        def run(call: KernelCall) -> None:
            recorder.issued.append(call)
            arguments = {name: recorder._describe(value) for name, value in call.arguments.items()}
            recorder.described.append(
                (call.kernel.__name__, call.grid, str(arguments), str(call.constants), str(call.options))
            )
            if not recorder._compute:
                return
            # What the interpreter computes with is no operator of the work.
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                recorder._run(call)

        KernelCall.run = run  # type: ignore[method-assign]
        self._guard.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        super().__exit__(None, None, None)
        self._guard.__exit__(None, None, None)
        KernelCall.run = self._run  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        memories = {_memory(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        arguments = str([self._describe(each) for each in (*args, *kwargs.values())])
        result = func(*args, **kwargs)
        name = str(func).removeprefix("aten.")
        results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if not func._schema.is_mutable:
            if all(_memory(each) in memories for each in results):
                return result  # A view.
            for tensor in results:
                self._names.setdefault(_memory(tensor), f"made {len(self.made)}")
                self.made.append(tensor)
        if name.split(".")[0] not in _STARTS_NOTHING:
            self.issued.append(_Operator(func, args, kwargs, result))
            self.described.append((name, arguments, str([self._describe(each) for each in results])))
        return result

    def repeat(self) -> None:
        """Issue all of it again."""
        for each in self.issued:
            if isinstance(each, KernelCall):
                each.run()
            else:
                each.repeat()

    def _describe(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._describe(each) for each in value]
        if not isinstance(value, torch.Tensor):
            return value
        where = self._names.get(_memory(value), _memory(value))
        return where, value.storage_offset(), tuple(value.shape), value.stride(), str(value.dtype)


class RecordedGraphs:
    """Graphs for tests: as of `StepGraphs`."""

    def __init__(self) -> None:
        self.captured: list[RecordedWork] = []
        self.repeated = 0

    def capture(self, work: Callable[[], Result]) -> Callable[[], Result]:
        with RecordedWork() as recorded:
            result = work()
        self.captured.append(recorded)
        for tensor in recorded.made:
            # Nothing of the capture itself is of use later.
            tensor.fill_(torch.nan if tensor.is_floating_point() else 1)

        def repeat() -> Result:
            self.repeated += 1
            recorded.repeat()
            return result

        return repeat

    def begin_anew(self) -> None:
        """Forget nothing: what was recorded is kept for the test."""


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
