"""The page on production names values of the chart and fields of the CRD that there are."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mamba_api.v1alpha1.schema import custom_resource_definition
from parsed_yaml import load_yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/howto/from-helm-install-to-production.md").read_text()
VALUES = load_yaml((ROOT / "charts/mambaserve/values.yaml").read_text())
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def words() -> Iterator[str]:
    yield from re.findall(r"--set '?([\w.]+)=", PAGE)
    for name in re.findall(r"`([a-z]+(?:[A-Z]\w*)?(?:\.\w+)*)`", PAGE):
        if "." in name or name != name.lower():
            yield name


def leads_somewhere(path: str) -> bool:
    """Return whether a dotted path is a field of the CRD (`spec.…`), or a value of the chart."""
    crd = path.startswith("spec.")
    at: Any = SCHEMA if crd else VALUES
    for name in path.split("."):
        at = at.get("properties", {}) if crd else at
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
    return True


@pytest.mark.parametrize("path", sorted(set(words())))
def test_what_the_page_names_exists(path: str) -> None:
    assert leads_somewhere(path)


def test_a_name_that_is_not_there_would_be_noticed() -> None:
    assert {"image.registry", "operator.replicas", "spec.rollout.pause"} <= set(words())
    assert not leads_somewhere("image.mirror")
    assert not leads_somewhere("spec.rollout.hold")
