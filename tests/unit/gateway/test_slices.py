"""EndpointSlices become targets."""

from typing import Any

from mamba_api import names
from mamba_gateway.slices import draining_pods, targets


def item(
    *endpoints: dict[str, Any], ports: Any = ({"name": "http", "port": 8000},), **more: Any
) -> dict[str, Any]:
    return {"addressType": "IPv4", "ports": list(ports), "endpoints": list(endpoints), **more}


def at(address: str, name: str = "", **conditions: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    return {**made, "targetRef": {"kind": "Pod", "name": name}} if name else made


def test_each_address_is_a_target_named_after_its_pod() -> None:
    found = targets([item(at("10.0.0.2", "b", ready=True), at("10.0.0.1", "a", ready=True))])
    assert [(t.url, t.name) for t in found] == [("http://10.0.0.1:8000", "a"), ("http://10.0.0.2:8000", "b")]
    assert all(t.ready and not t.draining for t in found)


def test_a_missing_condition_counts_as_ready_and_staying() -> None:
    [plain] = targets([item({"addresses": ["10.0.0.1"]})])
    [null] = targets([item({"addresses": ["10.0.0.1"], "conditions": {"ready": None, "terminating": None}})])
    assert (plain.ready, plain.draining) == (True, False) == (null.ready, null.draining)
    assert plain.name == "10.0.0.1:8000"


def test_a_terminating_pod_drains_and_one_that_is_not_ready_is_not_chosen() -> None:
    [going] = targets([item(at("10.0.0.1", "a", ready=False, serving=True, terminating=True))])
    [loading] = targets([item(at("10.0.0.1", "a", ready=False))])
    assert going.draining
    assert (loading.ready, loading.draining) == (False, False)


def test_the_port_called_http_wins_over_others() -> None:
    ports = (
        {"name": "admin", "port": 1},
        {"name": "http", "port": 2},
        {"name": "u", "port": 3, "protocol": "UDP"},
    )
    assert [t.url for t in targets([item(at("10.0.0.1"), ports=ports)])] == ["http://10.0.0.1:2"]
    assert [t.url for t in targets([item(at("10.0.0.1"), ports=ports[:1])])] == ["http://10.0.0.1:1"]


def test_slices_without_a_usable_port_or_with_names_for_addresses_are_skipped() -> None:
    assert targets([item(at("10.0.0.1"), ports=())]) == ()
    assert targets([item(at("10.0.0.1"), ports=ports_udp())]) == ()
    assert targets([item(at("a.example"), addressType="FQDN")]) == ()
    assert targets([{"addressType": "IPv4", "ports": None, "endpoints": None}]) == ()


def ports_udp() -> tuple[dict[str, Any], ...]:
    return ({"name": "http", "port": 1, "protocol": "UDP"},)


def test_an_ipv6_address_is_bracketed() -> None:
    assert targets([item(at("fd00::1"), addressType="IPv6")])[0].url == "http://[fd00::1]:8000"


def test_an_address_in_two_slices_is_one_target_in_its_better_standing() -> None:
    bad, good = item(at("10.0.0.1", "a", ready=False)), item(at("10.0.0.1", "a", ready=True))
    for order in ((bad, good), (good, bad)):
        [one] = targets(order)
        assert one.ready


def test_a_pod_that_the_operator_marked_drains_while_its_slice_still_calls_it_ready() -> None:
    marked = {"metadata": {"name": "a", "annotations": {names.ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}}}
    others = [{"metadata": {"name": "b"}}, {"metadata": {"name": "c", "annotations": None}}]
    draining = draining_pods([marked, *others])
    assert draining == frozenset({"a"})
    found = targets([item(at("10.0.0.1", "a", ready=True), at("10.0.0.2", "b", ready=True))], draining)
    assert [(t.name, t.ready, t.draining) for t in found] == [("a", True, True), ("b", True, False)]
