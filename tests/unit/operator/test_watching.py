"""Any event of a child wakes its owner, and kopf does nothing but watch."""

import asyncio
import copy
import json
import signal
from typing import Any

import kopf
import pytest
from kopf._core.reactor.running import ultimate_termination

from mamba_operator.objects.indices import Indices, indexed, owner_key
from mamba_operator.objects.kinds import BY_NAME, MAMBA_DEPLOYMENT, POD, SERVICE, WATCHED, Kind
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.watching import make_registry, make_settings
from operator_objects import applied, fitting_owner
from virtual_time import in_virtual_time

INSTANCE = "app.kubernetes.io/instance"


def test_the_object_itself_is_its_own_key() -> None:
    assert owner_key(MAMBA_DEPLOYMENT, fitting_owner()) == Key("models", "nano")


@pytest.mark.parametrize(
    "child", applied(fitting_owner()), ids=lambda one: one["kind"] + one["metadata"]["name"]
)
def test_every_child_leads_to_its_owner(child: Manifest) -> None:
    assert owner_key(BY_NAME[child["kind"]], child) == Key("models", "nano")


@pytest.mark.parametrize(
    "meta", [{}, {"name": "x"}, {"namespace": "n", "name": "x"}, {"namespace": "n", "labels": None}]
)
def test_an_object_without_our_labels_wakes_nobody(meta: dict[str, Any]) -> None:
    assert owner_key(POD, {"metadata": meta}) is None


def handlers(registry: kopf.OperatorRegistry) -> list[Any]:
    return list(registry._watching.get_all_handlers())


def test_there_is_one_plain_watch_per_kind_and_nothing_that_needs_a_finalizer() -> None:
    registry = make_registry(lambda _: None, lambda *_: None, Indices())

    assert len(handlers(registry)) == len(WATCHED) + 1
    assert list(registry._changing.get_all_handlers()) == []
    assert list(registry._spawning.get_all_handlers()) == []


async def test_an_event_tells_what_was_delivered_and_wakes_the_owner() -> None:
    woken: list[Key] = []
    delivered: list[tuple[Kind, bool]] = []
    indices = Indices()
    registry = make_registry(woken.append, lambda kind, _, gone: delivered.append((kind, gone)), indices)
    [handler] = [one for one in handlers(registry) if one.id == "wake-services"]
    [service] = [
        one
        for one in applied(fitting_owner())
        if one["metadata"]["name"] == "nano" and one["kind"] == "Service"
    ]

    await handler.fn(type="DELETED", body=kopf.Body(service))

    assert woken == [Key("models", "nano")]
    assert delivered == [(SERVICE, True)]
    assert indices.complete, "kopf hands over nothing before it has listed everything"


async def test_what_an_event_says_of_a_child_that_was_made_counts_from_then_on() -> None:
    indices = Indices()
    registry = make_registry(lambda _: None, lambda *_: None, indices)
    [handler] = [one for one in handlers(registry) if one.id == "wake-services"]
    service = next(one for one in applied(fitting_owner()) if one["kind"] == "Service")
    indices.add_created(service)
    assert indices.of(SERVICE, Key("models", "nano")) != []

    await handler.fn(type="DELETED", body=kopf.Body(service))

    assert indices.of(SERVICE, Key("models", "nano")) == []


def test_an_object_whose_label_was_taken_off_leaves_the_index() -> None:
    pod: Manifest = {"metadata": {"namespace": "n", "name": "x", "managedFields": [1], "labels": {
        "app.kubernetes.io/instance": "nano"}}, "status": {}}  # fmt: skip

    [(key, kept)] = indexed(POD, kopf.Body(pod)).items()

    assert key == Key("n", "nano")
    assert (kept["kind"], kept["apiVersion"], kept["status"]) == ("Pod", "v1", {})
    assert "managedFields" not in kept["metadata"]
    assert indexed(POD, kopf.Body({"metadata": {"namespace": "n", "name": "x"}})) == {}


def test_words_that_many_objects_use_are_kept_once() -> None:
    def kept(name: str) -> Manifest:
        meta = {"namespace": "n", "name": name, "labels": {INSTANCE: "nano"}}
        text = json.dumps({"metadata": meta, "spec": {"some words": ["of all"]}})
        [one] = indexed(POD, kopf.Body(json.loads(text))).values()
        return one

    first, second = kept("a"), kept("b")

    assert first == {**second, "metadata": {**second["metadata"], "name": "a"}}
    assert first["spec"]["some words"][0] is second["spec"]["some words"][0]
    for mine, other in zip(first["spec"], second["spec"], strict=True):
        assert mine is other


def test_a_list_that_shows_other_objects_or_versions_than_the_index_tells_whose() -> None:
    def pod(name: str, version: str, of: str) -> Manifest:
        labels = {"app.kubernetes.io/instance": of}
        meta = {"namespace": "n", "name": name, "uid": name, "resourceVersion": version, "labels": labels}
        return {"metadata": meta}

    indices = Indices()
    kept = [pod("same", "1", "a"), pod("older", "1", "b"), pod("gone", "1", "c")]
    indices.take({"of_pods": {Key("n", one["metadata"]["labels"][INSTANCE]): [one] for one in kept}})
    listed = [pod("same", "1", "a"), pod("older", "2", "b"), pod("new", "1", "d")]

    assert indices.differing(POD, listed) == {Key("n", name) for name in "bcd"}
    assert indices.differing(SERVICE, []) == set()


@pytest.mark.parametrize("namespaced", [True, False])
def test_kopf_posts_nothing_peers_with_nobody_and_asks_for_our_children_only(namespaced: bool) -> None:
    settings = make_settings(namespaced=namespaced)

    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled is namespaced
    assert len(settings.watching.label_selectors) == len(WATCHED)
    assert isinstance(settings.watching.server_timeout, int), "the API server takes whole seconds only"
    assert "kopf" not in settings.persistence.finalizer


def test_no_copy_of_an_object_is_made_to_find_out_what_changed() -> None:
    storage = make_settings(namespaced=False).persistence.diffbase_storage
    raw: Any = {"metadata": {"name": "a"}, "spec": {"large": ["x"] * 9}}

    assert len(storage.build(body=kopf.Body(raw))) == 0


async def test_a_child_whose_label_names_another_wakes_its_owner_too() -> None:
    woken: list[Key] = []
    registry = make_registry(woken.append, lambda *_: None, Indices())
    [handler] = [one for one in handlers(registry) if one.id == "wake-services"]
    service = copy.deepcopy(next(one for one in applied(fitting_owner()) if one["kind"] == "Service"))
    service["metadata"]["labels"][INSTANCE] = "another"

    await handler.fn(type="MODIFIED", body=kopf.Body(service))

    assert woken == [Key("models", "another"), Key("models", "nano")]


def test_watches_that_end_leave_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: killed.append(number))

    @in_virtual_time
    async def run() -> None:
        settings = make_settings(namespaced=True)
        # What kopf does beside its watches, and ends with them.
        task = asyncio.create_task(ultimate_termination(settings=settings, stop_flag=None))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1000)

    run()
    assert killed == []
