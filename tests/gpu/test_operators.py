"""Every operator gives what its reference gives in float32, with the arguments of a model's step."""

import pytest
import torch
from benchmarks.gpu.case import Absent
from benchmarks.gpu.models import FAMILIES
from benchmarks.gpu.stages.correct import WatchedModel, operators_of, shapes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("step", ["decodes", "prompts", "both"])
def test_operators_are_right(device: torch.device, name: str, step: str) -> None:
    small = device.type == "cpu"
    if small and (name, step) != (FAMILIES[0], "decodes"):
        pytest.skip("the measurement's own run without a card has the others")
    watched = WatchedModel(name, device, small=small)
    shape = shapes(small=small)[step]
    for operator in operators_of(name, step):
        try:
            watched.check(operator, shape)
        except Absent:
            pytest.fail(f"{name} does not call {operator} in a step of {step}")
