"""A tensor that a kernel cannot take is refused by name before anything is launched."""

import pytest
import torch

from mamba_kernels.triton_support import WrongArgument, check


def test_what_fits_passes() -> None:
    check("x", torch.empty(3, 9)[:, 2:6], (None, 4))
    check("state", torch.empty(4, 50)[:, 3:27].unflatten(1, (2, 3, 4)), (None, 2, 3, 4), dense_from=1)


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (torch.empty(3, 5), "shape"),
        (torch.empty(4), "shape"),
        (torch.empty(3, 4, dtype=torch.float64), "float64"),
        (torch.empty(4, 3).t(), "strides"),
        (torch.empty(3, 4, device="meta"), "meta"),
    ],
)
def test_what_does_not_fit_is_named(tensor: torch.Tensor, named: str) -> None:
    with pytest.raises(WrongArgument, match=rf"^gate .*{named}"):
        check("gate", tensor, (None, 4), device=torch.device("cpu"))
