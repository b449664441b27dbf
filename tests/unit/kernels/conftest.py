"""Kernel tests run as the model does: without autograd."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_autograd() -> Iterator[None]:
    with torch.inference_mode():
        yield
