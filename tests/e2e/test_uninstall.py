"""What is left of the product when the chart goes: what its values say."""

import pytest

from product import Deployed, chart
from testcluster.node import Node

pytestmark = pytest.mark.e2e

CRD = "mambadeployments.serving.mambaserve.io"


def test_the_objects_stay_when_the_chart_goes_and_a_new_one_takes_them_over(
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
    with chart(node):
        node.wait_for(lambda: deployed.status().get("observedGeneration") == 2, "the new operator to work")


def test_the_crd_goes_with_the_chart_when_the_values_do_not_keep_it(node: Node) -> None:
    with chart(node, "--set", "crds.keep=false", "--take-ownership"):
        assert node.get("crd", CRD) is not None

    assert node.get("crd", CRD) is None
