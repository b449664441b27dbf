"""A guard for tests: inside it, anything that makes Python wait for a tensor's value is an error.

On a GPU such a read stalls the host until the device has caught up, which undoes overlap scheduling; on a
CPU it would go unnoticed. Never used on the serving path.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class HostSync(RuntimeError):
    """Python asked for a tensor's value; take it from the host copy of the batch instead."""


_READS = frozenset(
    {"tolist", "numpy", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__"}
)
_UNPADDED = frozenset({"repeat_interleave.Tensor"})


class _Functions(TorchFunctionMode):
    """Methods that read the memory of a CPU tensor without a dispatched operator."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise HostSync(f"Tensor.{name}() reads a tensor from Python")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Operators whose result, or whose result's shape, depends on values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.")
        if torch.Tag.data_dependent_output in func.tags:
            raise HostSync(f"{name} reads a tensor")
        if name.startswith(("index.", "index_put", "_unsafe_index", "_index_put_impl")):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise HostSync(f"{name} with a boolean mask: its shape depends on values")
        elif torch.Tag.dynamic_output_shape in func.tags and not (
            name in _UNPADDED and kwargs.get("output_size") is not None
        ):
            raise HostSync(f"{name}: its shape depends on values")
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # Without autograd these arrive whole: look inside them too.
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)


class no_sync:  # noqa: N801 - reads as a statement, like torch.no_grad
    """`with no_sync(): model.forward(...)` raises HostSync at the first read."""

    def __enter__(self) -> None:
        self._modes: list[Any] = [_Functions(), _Operators()]
        for mode in self._modes:
            mode.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)
