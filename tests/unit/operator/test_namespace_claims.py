"""Which of several releases serves a namespace: the first, until it is gone. In virtual time."""

import asyncio
import contextlib

import pytest

from fake_cluster import FakeCluster
from mamba_api import names
from mamba_operator.objects.errors import ClusterError, Forbidden, NotFound, Unreachable
from mamba_operator.objects.manifest import Key
from mamba_operator.process.namespace_claims import DURATION_PERIODS, RENEW_EVERY, NamespaceClaims
from virtual_time import in_virtual_time

KEY = Key("models", "nano")
DURATION = DURATION_PERIODS * RENEW_EVERY


class Release:
    """The operators of a release, which look at the object again when they wanted to."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.passes: list[float] = []
        self.messages: list[str] = []
        self.exists = True
        self.claims = NamespaceClaims(cluster, name, self._work, self._say, lambda _: self.exists)
        self._tasks = [asyncio.create_task(self._look()), asyncio.create_task(self.claims.run())]

    async def _work(self, _: Key) -> float | None:
        self.passes.append(asyncio.get_running_loop().time())
        return 5.0

    def _say(self, _: Key, reason: str, said: str) -> None:
        self.messages.append(f"{reason}: {said}")

    async def _look(self) -> None:
        while True:
            try:
                await asyncio.sleep(await self.claims(KEY) or 0)
            except ClusterError:
                await asyncio.sleep(1)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def holder(cluster: FakeCluster) -> str:
    found = cluster.find("Lease", names.CLAIM_NAME)
    assert found is not None
    return str(found["spec"]["holderIdentity"])


@in_virtual_time
async def test_one_release_serves_and_the_other_says_so_once() -> None:
    cluster = FakeCluster()
    first = Release(cluster, "a/mambaserve-operator")
    await asyncio.sleep(1)
    second = Release(cluster, "b/mambaserve-operator")

    await asyncio.sleep(1000)

    assert len(first.passes) >= 190
    assert second.passes == []
    [said] = second.messages
    assert said.startswith("LeftToAnother: ")
    assert "a/mambaserve-operator" in said
    assert first.messages == []
    await first.end()
    await second.end()


@in_virtual_time
async def test_an_object_of_another_that_is_deleted_is_looked_at_no_more() -> None:
    cluster = FakeCluster()
    first = Release(cluster, "a")
    await asyncio.sleep(1)
    second = Release(cluster, "b")
    await asyncio.sleep(1)
    assert await second.claims(KEY) == RENEW_EVERY

    second.exists = False

    assert await second.claims(KEY) is None
    await first.end()
    await second.end()


@in_virtual_time
async def test_a_release_that_is_gone_is_followed_by_the_other_and_never_beside_it() -> None:
    cluster = FakeCluster()
    first = Release(cluster, "a")
    await asyncio.sleep(1)
    second = Release(cluster, "b")
    await asyncio.sleep(100)

    await first.end()
    await asyncio.sleep(200)

    assert holder(cluster) == "b"
    assert first.passes[-1] + DURATION - RENEW_EVERY <= second.passes[0]
    assert second.passes[0] <= 101 + DURATION + 2 * RENEW_EVERY
    await second.end()


@in_virtual_time
async def test_another_operator_of_the_same_release_goes_on_at_once() -> None:
    cluster = FakeCluster()
    before = Release(cluster, "a")
    await asyncio.sleep(1)
    await before.end()

    after = Release(cluster, "a")
    await asyncio.sleep(0.1)

    assert after.passes == [1.0]
    await after.end()


@in_virtual_time
async def test_of_a_release_that_ended_cleanly_hundreds_of_namespaces_are_free_within_minutes() -> None:
    cluster, passes = FakeCluster(), []

    async def work(key: Key) -> float | None:
        passes.append(key)
        return 5.0

    def release(name: str) -> NamespaceClaims:
        return NamespaceClaims(cluster, name, work, lambda *_: None, lambda _: True)

    keys = [Key(f"team-{number}", "nano") for number in range(200)]
    first = release("a")
    for _ in range(3):
        renewing = asyncio.create_task(first.run())
        for key in keys:
            await first(key)
        await asyncio.sleep(2000)
        renewing.cancel()
    for key in keys:
        await first(key)
    await first.shorten()

    passes.clear()
    second = release("b")
    for _ in range(12):
        await asyncio.sleep(15)
        for key in keys:
            await second(key)
    assert set(passes) == set(keys)


@in_virtual_time
async def test_who_cannot_renew_stops_before_another_may_begin() -> None:
    cluster = FakeCluster()
    first = Release(cluster, "a")
    await asyncio.sleep(100)
    cluster.fault = lambda *_: Unreachable("away")
    await asyncio.sleep(500)

    assert first.passes[-1] < 100 + DURATION
    cluster.fault = lambda *_: None
    await asyncio.sleep(10)
    assert first.passes[-1] > 590
    await first.end()


@pytest.mark.parametrize("error", [Forbidden("no rule", status=403), Unreachable("away")], ids=repr)
def test_whose_namespace_cannot_be_asked_is_served_by_nobody(error: ClusterError) -> None:
    @in_virtual_time
    async def run() -> None:
        cluster = FakeCluster()
        cluster.fault = lambda *_: error
        release = Release(cluster, "a")
        await asyncio.sleep(100)

        with pytest.raises(type(error)):
            await release.claims(KEY)

        assert release.passes == []
        # A right that is missing does not come by itself; without a status an object would stay silent.
        message = "The operator may not read the claim on the namespace, and serves nothing in it: no rule"
        assert release.messages == ([f"Forbidden: {message}"] if isinstance(error, Forbidden) else [])
        cluster.fault = lambda *_: None
        await asyncio.sleep(20)
        assert release.passes
        await release.end()

    run()


@in_virtual_time
async def test_a_thousand_namespaces_cost_a_request_in_four_seconds_and_are_kept() -> None:
    cluster, requests = FakeCluster(), list[str]()
    cluster.counted = lambda method, _: requests.append(method)
    claims = NamespaceClaims(cluster, "a", _nothing, lambda *_: None, lambda _: True)
    renewing = asyncio.create_task(claims.run())
    keys = [Key(f"models-{n}", "nano") for n in range(1000)]

    async def pass_over_all() -> None:
        for key in keys:
            assert await claims(key) == 5.0

    await pass_over_all()
    await asyncio.sleep(300)
    await pass_over_all()
    before = len(requests)
    for _ in range(20):
        await asyncio.sleep(300)
        await pass_over_all()

    assert 0.2 <= (len(requests) - before) / 6_000 <= 0.26
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)


@in_virtual_time
async def test_of_a_namespace_that_is_gone_nothing_is_held_and_the_last_pass_is_made() -> None:
    """Expect no pass: one that failed after its objects were deleted would be tried again for ever."""
    cluster = FakeCluster()
    passes: list[Key] = []

    async def work(key: Key) -> None:
        passes.append(key)

    claims = NamespaceClaims(cluster, "a", work, lambda *_: None, lambda _: True)
    renewing = asyncio.create_task(claims.run())
    await claims(KEY)
    del cluster.objects["Lease", KEY.namespace, names.CLAIM_NAME]
    cluster.fault = lambda verb, *_: NotFound("no such namespace", status=404) if verb == "create" else None
    await asyncio.sleep(10 * DURATION)
    cluster.calls.clear()

    assert await claims(KEY) is None
    await asyncio.sleep(10 * DURATION)

    assert passes == [KEY, KEY]
    assert cluster.calls == ["create Lease/mambaserve-served-by"]
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)


async def _nothing(_: Key) -> float | None:
    return 5.0
