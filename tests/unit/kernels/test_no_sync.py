"""The guard refuses every way in which Python can wait for a tensor's value, and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from testmodels.no_sync import HostSync, no_sync

X = torch.arange(6.0)
MASK = X > 2


@pytest.mark.parametrize(
    "read",
    [
        X[0].item,
        X.tolist,
        X.numpy,
        lambda: np.asarray(X),
        lambda: bool(X[0]),
        lambda: int(X[0]),
        lambda: float(X[0]),
        lambda: [1, 2, 3][X[1].long()],
        X.nonzero,
        lambda: torch.where(MASK),
        lambda: X[MASK],
        lambda: X.clone().__setitem__(MASK, torch.zeros(3)),
        lambda: torch.masked_select(X, MASK),
        lambda: torch.unique(X),
        lambda: torch.equal(X, X),
        lambda: X.repeat_interleave(X.long()),
        X.cpu,
    ],
)
def test_a_read_from_python_is_refused(read: Callable[[], object]) -> None:
    read()
    with pytest.raises(HostSync), no_sync():
        read()


@pytest.mark.parametrize(
    "work",
    [
        lambda: X[torch.tensor([0, 2])],
        lambda: X.clone().__setitem__(torch.tensor([0, 2]), torch.zeros(2)),
        lambda: torch.where(MASK, X, 0),
        lambda: X.masked_fill(MASK, 0),
        lambda: X.index_select(0, torch.tensor([1])),
        lambda: F.scaled_dot_product_attention(X.view(1, 1, 6, 1), X.view(1, 1, 6, 1), X.view(1, 1, 6, 1)),
        lambda: X.repeat_interleave(torch.ones(6, dtype=torch.long), output_size=6),
        lambda: torch.from_numpy(np.arange(3)),
        lambda: X.view(2, 3) @ X.view(3, 2),
    ],
)
def test_work_that_stays_on_the_device_passes(work: Callable[[], object]) -> None:
    with no_sync():
        work()


def test_the_guard_ends_with_its_block() -> None:
    with no_sync():
        pass
    with pytest.raises(ZeroDivisionError), no_sync():
        raise ZeroDivisionError
    assert X.sum().item() == 15
