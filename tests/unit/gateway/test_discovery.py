"""EndpointSlices become targets, and the watch hands them on."""

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

from api_script import ApiScript, line, listed, watched
from mamba_gateway.endpoints.discovery import targets, watch_engines
from mamba_gateway.endpoints.pool import Target
from virtual_time import in_virtual_time

HTTP_PORTS = ({"name": "http", "port": 8000},)


def item(*endpoints: dict[str, Any], ports: Any = HTTP_PORTS, **more: Any) -> dict[str, Any]:
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
    assert (going.ready, going.draining) == (True, True)
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


@in_virtual_time
async def test_the_slices_of_the_engine_service_are_handed_on_as_they_change() -> None:
    seen: list[list[tuple[str, bool]]] = []

    def sink(found: Iterable[Target]) -> None:
        seen.append([(target.name, target.draining) for target in found])

    def named(*endpoints: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": "s", "resourceVersion": "2"}, **item(*endpoints)}

    script = ApiScript(
        listed("1"),
        watched(
            line("ADDED", named(at("10.0.0.1", "a", ready=True))),
            line("MODIFIED", named(at("10.0.0.1", "a", ready=False, terminating=True))),
            hold=True,
        ),
    )
    watching = asyncio.create_task(watch_engines(script, "models", "nano", sink, Random(0)))
    await asyncio.sleep(1)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    # That there are none is something to tell: it differs from not knowing.
    assert seen == [[], [("a", False)], [("a", True)]]
    [asked, _] = script.requests
    assert asked["path"] == "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
    assert asked["query"] == {"labelSelector": "kubernetes.io/service-name=nano-engine"}
