"""Remains of the product after the chart is uninstalled: its values decide."""

import pytest

from product import Deployed, chart
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CRD = "mambadeployments.serving.mambaserve.io"


def test_objects_outlive_the_chart_serve_the_next_one_and_go_when_the_values_do_not_keep_the_crd(
    node: Node, namespace: str
) -> None:
    deployed = Deployed(node, namespace)
    with chart(node):
        deployed.apply(mode="Plan")
        node.wait_for(lambda: deployed.condition("Planned"), "the plan")

    assert node.get("crd", CRD) is not None
    assert node.list("deployments", "mambaserve-system") == []
    assert node.get("mdep", "quick-start", namespace) is not None

    deployed.apply(mode="Plan", model={"uri": "builtin://tiny-recall", "maxModelLen": 1024})
    with chart(node, "--set", "crds.keep=false"):
        node.wait_for(lambda: deployed.status().get("observedGeneration") == 2, "the new operator to work")

    node.wait_for(lambda: node.get("crd", CRD) is None, "the CRD to be gone")
