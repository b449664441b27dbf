"""The InferencePool of a deployment: what leads to it, and a cluster without the kind."""

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import ClusterError, Forbidden, NotFound, Unreachable
from mamba_operator.objects.manifest import Key, Manifest, Ref
from mamba_operator.observe import observe
from operator_objects import applied, fitting_owner, planned

KEY = Key("models", "nano")
POOLED = fitting_owner(gateway={"inferencePool": {"proxyNamespace": "envoy"}})
POOL = Ref("InferencePool", "nano")


def children(of: Manifest) -> dict[tuple[str, str], Manifest]:
    return {(one["kind"], one["metadata"]["name"]): one for one in applied(of)}


def test_the_pool_leads_to_the_engines_and_to_the_picker_of_its_gateway() -> None:
    made = children(POOLED)
    spec = made["InferencePool", "nano"]["spec"]
    engines = made["Deployment", "nano-engine"]["spec"]["template"]
    assert spec["selector"]["matchLabels"].items() <= engines["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in engines["spec"]["containers"][0]["ports"]}
    assert spec["targetPorts"] == [{"number": ports["http"]}]
    reference = spec["endpointPickerRef"]
    service = made["Service", reference["name"]]["spec"]
    [port] = [port for port in service["ports"] if port["port"] == reference["port"]["number"]]
    gateway = made["Deployment", "nano"]["spec"]["template"]
    assert service["selector"].items() <= gateway["metadata"]["labels"].items()
    container = gateway["spec"]["containers"][0]
    listening = {one["name"]: one["containerPort"] for one in container["ports"]}[port["targetPort"]]
    told = container["args"]
    assert told[told.index("--endpoint-picker-port") + 1] == str(listening)


def test_without_the_field_there_is_no_pool_no_picker_and_no_way_past_the_gateway() -> None:
    made = children(fitting_owner())
    assert "InferencePool" not in {kind for kind, _ in made}
    assert len(made["Service", "nano"]["spec"]["ports"]) == 1
    assert (
        "--endpoint-picker-port"
        not in made["Deployment", "nano"]["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    assert len(made["NetworkPolicy", "nano-engine"]["spec"]["ingress"][0]["from"]) == 3


def test_only_the_proxy_s_namespace_reaches_the_picker_which_tells_the_engines_key() -> None:
    rules = children(POOLED)["NetworkPolicy", "nano"]["spec"]["ingress"]

    def reach(port: int) -> list[object]:
        """Return the peers that may reach the port of a gateway pod; None = everybody."""
        named = {"http": 8000}
        return [
            rule.get("from")
            for rule in rules
            for one in rule["ports"]
            if one["protocol"] == "TCP"
            and (first := named.get(one["port"], one["port"])) <= port <= one.get("endPort", first)
        ]

    assert reach(9002) == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy"}}}]]
    for port in (1, 8000, 9001, 9003, 65535):
        assert None in reach(port)
    assert ("NetworkPolicy", "nano") not in children(fitting_owner())


@pytest.mark.parametrize(
    "error",
    [NotFound("there is no such thing", status=404), Forbidden("may not list inferencepools", status=403)],
    ids=["no such kind", "an older role"],
)
async def test_in_a_cluster_without_the_kind_all_else_is_made_and_the_pool_is_looked_for_again(
    error: ClusterError,
) -> None:
    cluster = FakeCluster(POOLED)
    cluster.fault = lambda verb, kind, _: error if (verb, kind) == ("list", "InferencePool") else None
    seen = await observe(cluster, KEY)
    assert set(seen.not_served) == {"InferencePool"}
    without = planned(POOLED, not_served=seen.not_served)
    made = {change.manifest["kind"] for change in without.applies}
    assert made == {change.manifest["kind"] for change in planned(POOLED).applies} - {"InferencePool"}
    assert without.not_served == tuple(seen.not_served.values())
    assert without.requeue_after is not None


async def test_a_list_of_pools_without_an_answer_is_no_look_at_all() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, _: Unreachable("away") if kind == "InferencePool" else None
    with pytest.raises(Unreachable):
        await observe(cluster, KEY)


async def test_a_pool_that_nobody_asks_for_any_more_goes() -> None:
    cluster = FakeCluster(fitting_owner(), *applied(POOLED))
    seen = await observe(cluster, KEY)
    assert POOL in seen.children
    removed = planned(fitting_owner(), seen.children.values()).deletes
    assert {one.ref for one in removed} == {POOL, Ref("NetworkPolicy", "nano")}
