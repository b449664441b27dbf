"""Any event of a child wakes its owner, and kopf does nothing but watch."""

from typing import Any

import kopf
import pytest

from mamba_operator.kinds import BY_NAME, MAMBA_DEPLOYMENT, POD, SERVICE, WATCHED, Kind
from mamba_operator.manifest import Key, Manifest
from mamba_operator.watching import make_registry, make_settings, owner_key
from operator_objects import applied, fitting_owner


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
    registry = make_registry(lambda _: None, lambda *_: None)

    assert len(handlers(registry)) == len(WATCHED) + 1
    assert list(registry._changing.get_all_handlers()) == []
    assert list(registry._spawning.get_all_handlers()) == []


async def test_an_event_tells_what_was_delivered_and_wakes_the_owner() -> None:
    woken: list[Key] = []
    delivered: list[tuple[Kind, bool]] = []
    registry = make_registry(woken.append, lambda kind, _, gone: delivered.append((kind, gone)))
    [handler] = [one for one in handlers(registry) if one.id == "wake-services"]
    [service] = [
        one
        for one in applied(fitting_owner())
        if one["metadata"]["name"] == "nano" and one["kind"] == "Service"
    ]

    await handler.fn(type="DELETED", body=kopf.Body(service))

    assert woken == [Key("models", "nano")]
    assert delivered == [(SERVICE, True)]


@pytest.mark.parametrize("namespaced", [True, False])
def test_kopf_posts_nothing_peers_with_nobody_and_asks_for_our_children_only(namespaced: bool) -> None:
    settings = make_settings(namespaced=namespaced)

    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled is namespaced
    assert len(settings.watching.label_selectors) == len(WATCHED)
    assert isinstance(settings.watching.server_timeout, int), "the API server takes whole seconds only"
    assert "kopf" not in settings.persistence.finalizer
