"""An operator's arguments changed one at a time, and what has to become of each."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mamba_kernels.arguments import UnsupportedArgument, WrongArgument
from mamba_kernels.ssd_prefill import ChunkPlan
from testmodels.operator_calls import OperatorCall

Arguments = dict[str, Any]
SAID_AS = {"resident": "routes", "resident_noise": "noise"}
"""Fields that errors call otherwise."""
NOBODYS = (torch.float64, torch.int16)
"""Types that no kernel takes."""
ANY_ERROR = (WrongArgument, UnsupportedArgument)


@dataclasses.dataclass(frozen=True)
class Changed:
    """One argument of a call in another way."""

    path: str
    how: str
    tensor: torch.Tensor
    errors: tuple[type[WrongArgument], ...] = ()
    """None of them = the result is as before."""
    named: str = ""
    """Whom the message is about, a pattern."""

    def __str__(self) -> str:
        return f"{self.path} {self.how}"


def tensors(given: Arguments) -> dict[str, torch.Tensor]:
    """Return the tensors by path, without those of a `ChunkPlan`, which is built as a whole."""
    tensors_by_path = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            tensors_by_path[name] = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, ChunkPlan):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            tensors_by_path |= {
                f"{name}.{key}": each for key, each in fields.items() if isinstance(each, torch.Tensor)
            }
    return tensors_by_path


def changes(call: OperatorCall) -> Iterator[Changed]:
    """Yield each tensor argument with wrong shapes, types, devices and strides, and valid variants."""
    for path, x in tensors(call.make()).items():
        leaf = path.split(".")[-1]
        own = SAID_AS.get(leaf, leaf)
        for d in range(x.dim()):
            yield from _lengths(call, path, own, x, d)
            apart = torch.stack([x, x], d + 1).flatten(d, d + 1)[(slice(None),) * d + (slice(None, None, 2),)]
            if x.shape[d] > 1:
                dense = d >= call.dense_from.get(path, x.dim() - 1)
                yield Changed(path, f"apart in {d}", apart, (UnsupportedArgument,) if dense else (), own)
        yield Changed(path, "with a dimension more", x.unsqueeze(0), ANY_ERROR, own)
        yield Changed(path, "with a dimension less", x[0], ANY_ERROR, own)
        if x.dim() > 1:
            turned = x.transpose(-1, -2).contiguous().transpose(-1, -2)
            yield Changed(path, "transposed", turned, (UnsupportedArgument,), own)
        for dtype in NOBODYS:
            yield Changed(path, f"of {dtype}", x.to(dtype), (UnsupportedArgument,), own)
        first, second = call.device
        yield Changed(path, "elsewhere", x.to("meta"), (WrongArgument,), second if path == first else own)


def _lengths(call: OperatorCall, path: str, own: str, x: torch.Tensor, d: int) -> Iterator[Changed]:
    at = f"{path}.{d}"
    longer = torch.cat([x, x.narrow(d, 0, 1)], d)
    shorter = x.narrow(d, 0, x.shape[d] - 1).contiguous()
    if (named := call.tells.get(at, own)) is None:
        if at not in call.means_another:
            yield Changed(path, f"longer in {d}", longer)
        return
    yield Changed(path, f"longer in {d}", longer, (WrongArgument,), named)
    if at not in call.may_be_shorter:
        yield Changed(path, f"shorter in {d}", shorter, (WrongArgument,), named)


def with_change(given: Arguments, changed: Changed) -> Arguments:
    name, _, field = changed.path.partition(".")
    new = dataclasses.replace(given[name], **{field: changed.tensor}) if field else changed.tensor
    return {**given, name: new}


def results(operator: Callable[..., Any], given: Arguments) -> list[torch.Tensor]:
    """Return the results of the operator, followed by its arguments after the call."""
    returned = operator(*given.values())
    return [*tensors({"returned": returned}).values(), *tensors(given).values()]


def assert_refused(
    operator: Callable[..., Any], given: Arguments, changed: Changed, launches: list[Any]
) -> None:
    """Assert that the call is refused without a launch; `launches`: the caller's list of launches so far."""
    before = len(launches)
    with pytest.raises(WrongArgument, match=rf"^(\w+\.)*({changed.named}) ") as raised:
        operator(*given.values())
    assert raised.type in changed.errors
    assert len(launches) == before, "refused before anything runs"


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """Assert equal results; elements beyond the required length are ignored."""
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one[tuple(slice(0, extent) for extent in other.shape)], other)
