"""Which namespaces an operator serves: those that it may list, looked at again and again."""

import asyncio
from typing import Any

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import Forbidden, Unreachable
from mamba_operator.objects.manifest import Manifest
from mamba_operator.process.served_namespaces import ServedNamespaces
from virtual_time import in_virtual_time


class Answers(FakeCluster):
    """Errors of the list of each namespace."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__()
        self.errors = dict(errors)
        self.asked = 0

    async def list(self, kind: Any, namespace: str | None, **_: Any) -> list[Manifest]:
        self.asked += 1
        if (error := self.errors.get(str(namespace))) is not None:
            raise error
        return []


def served(cluster: Answers, *told: str) -> ServedNamespaces:
    return ServedNamespaces(cluster, told, 15.0)


@in_virtual_time
async def test_what_is_forbidden_is_left_out_and_a_server_that_is_away_says_nothing_of_a_namespace() -> None:
    cluster = Answers(a=Forbidden("no", status=403), c=Unreachable("no answer"))
    assert await served(cluster, "a", "b", "c").first() == ("b", "c")


@in_virtual_time
async def test_while_none_may_be_served_it_waits_for_one() -> None:
    cluster = Answers(a=Forbidden("no", status=403))
    waiting = asyncio.create_task(served(cluster, "a").first())
    await asyncio.sleep(100)
    assert not waiting.done()
    cluster.errors.clear()
    assert await waiting == ("a",)


@in_virtual_time
async def test_a_namespace_that_comes_or_goes_is_another_answer_unless_none_is_left() -> None:
    cluster = Answers(a=Forbidden("no", status=403))
    those = served(cluster, "a", "b")
    waiting = asyncio.create_task(those.wait_for_change(await those.first()))
    await asyncio.sleep(100)
    assert not waiting.done()
    cluster.errors["b"] = cluster.errors["a"]
    await asyncio.sleep(100)
    assert not waiting.done(), "there is nothing to start anew for"
    cluster.errors.clear()
    await waiting
    assert await those.first() == ("a", "b")


@in_virtual_time
async def test_of_the_whole_cluster_and_of_one_namespace_nothing_is_asked_later() -> None:
    for told in ((), ("a",)):
        cluster = Answers()
        those = served(cluster, *told)
        assert await those.first() == told
        asked = cluster.asked
        waiting = asyncio.create_task(those.wait_for_change(told))
        await asyncio.sleep(1000)
        assert (waiting.done(), cluster.asked) == (False, asked)
        waiting.cancel()
