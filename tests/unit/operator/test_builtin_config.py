"""The plan of a shipped model is known before any engine has started."""

from typing import Any

import pytest

from mamba_cli.shipped_models import shipped_config
from mamba_operator.memory.verdict import Fits
from mamba_operator.observe import builtin_config
from operator_objects import owner, planned


def test_a_shipped_models_configuration_is_read_and_planned_with() -> None:
    of = owner(resources={"gpus": 0, "memory": "4Gi"})
    config = builtin_config(of, shipped_config)

    assert config is not None
    assert isinstance(planned(of, model_config=config).verdict, Fits)


@pytest.mark.parametrize(
    "spec", [None, [], {}, {"model": None}, {"model": {"uri": 5}}, {"model": {"uri": "hf://a/b"}}]
)
def test_anything_else_has_none(spec: Any) -> None:
    assert builtin_config({"spec": spec}, shipped_config) is None


def test_a_model_that_only_another_image_ships_has_none() -> None:
    assert builtin_config(owner(model={"uri": "builtin://nobody-knows"}), shipped_config) is None
