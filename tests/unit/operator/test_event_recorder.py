"""Events count up over restarts and expiry, memory stays bounded, and a lost one is no failure."""

import asyncio

import pytest

from fake_cluster import FakeCluster
from mamba_operator import pass_events
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    ObjectRejected,
    Unreachable,
)
from mamba_operator.objects.manifest import Manifest
from mamba_operator.pass_events import (
    FLUSH_SECONDS,
    MAX_DELAY_SECONDS,
    EventContent,
    EventRecorder,
    PendingEvent,
    event_manifest,
    pending_event,
)
from operator_objects import NOW, fitting_owner
from virtual_time import in_virtual_time

OF = fitting_owner()


def event(message: str = "Created Service nano", of: Manifest = OF) -> PendingEvent:
    return pending_event(of, EventContent("Normal", "Created", message), NOW)


class Log(EventRecorder):
    """Writes at once."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster, reporter="me")

    async def post(self, said: PendingEvent) -> None:
        self.record(said)
        await self.flush()


class SilentCluster(FakeCluster):
    """Takes a request and never answers."""

    async def create(self, manifest: Manifest, *, validation: str = "Ignore") -> Manifest:
        await asyncio.Event().wait()
        return manifest


def counts(cluster: FakeCluster) -> list[int]:
    return [one["count"] for key, one in cluster.objects.items() if key[0] == "Event"]


async def test_the_same_thing_said_again_counts_up() -> None:
    cluster = FakeCluster()
    log = Log(cluster)
    for _ in range(3):
        await log.post(event())

    assert counts(cluster) == [3]


@in_virtual_time
async def test_who_says_something_does_not_wait_until_it_is_written() -> None:
    cluster = FakeCluster()
    log = EventRecorder(cluster, reporter="me")
    running = asyncio.create_task(log.run())
    for number in range(3):
        log.record(event(str(number)))
    before = counts(cluster)
    await asyncio.sleep(1)
    later = counts(cluster)

    # What was said last, before the operator ends.
    log.record(event("last"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert (before, later, counts(cluster)) == ([], [1] * 3, [1] * 4)


@in_virtual_time
async def test_passes_that_are_due_come_first_for_a_minute_and_no_longer() -> None:
    cluster, due = FakeCluster(), [True]
    log = EventRecorder(cluster, reporter="me", busy=lambda: bool(due))
    running = asyncio.create_task(log.run())
    log.record(event("first"))
    await asyncio.sleep(MAX_DELAY_SECONDS - 1)
    log.record(event("second"))
    early = counts(cluster)
    await asyncio.sleep(2)
    after_a_minute = counts(cluster)
    due.clear()
    await asyncio.sleep(1)
    running.cancel()

    assert (early, after_a_minute, counts(cluster)) == ([], [1], [1, 1])


@in_virtual_time
async def test_an_api_server_that_never_answers_keeps_no_operator_from_its_end() -> None:
    log = EventRecorder(SilentCluster(), reporter="me")
    running = asyncio.create_task(log.run())
    log.record(event())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert asyncio.get_running_loop().time() - began <= FLUSH_SECONDS


async def test_events_that_nobody_can_write_do_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_events, "MAX_PENDING", 5)
    cluster = FakeCluster()
    log = EventRecorder(cluster, reporter="me")
    for number in range(8):
        log.record(event(str(number)))

    await log.flush()

    assert len(counts(cluster)) == 5


async def test_a_restarted_operator_goes_on_counting_where_the_last_one_stopped() -> None:
    cluster = FakeCluster()
    before, after = Log(cluster), Log(cluster)
    for _ in range(7):
        await before.post(event())

    for _ in range(2):
        await after.post(event())

    assert counts(cluster) == [9]


async def test_an_event_that_the_cluster_dropped_after_its_hour_begins_anew() -> None:
    cluster = FakeCluster()
    log = Log(cluster)
    await log.post(event())
    cluster.objects.clear()

    await log.post(event())

    assert counts(cluster) == [1]


async def test_what_was_forgotten_for_want_of_memory_is_counted_from_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pass_events, "MAX_COUNTS", 3)
    cluster = FakeCluster()
    log = Log(cluster)
    for _ in range(4):
        await log.post(event("often"))
    for number in range(10):
        await log.post(event(str(number)))

    await log.post(event("often"))

    assert sorted(counts(cluster)) == [1] * 10 + [5]
    assert len(log._counts) == 3


async def test_the_same_words_about_two_objects_are_two_events() -> None:
    cluster = FakeCluster()
    successor = fitting_owner()
    successor["metadata"]["uid"] = "another"

    await Log(cluster).post(event())
    await Log(cluster).post(event(of=successor))

    assert counts(cluster) == [1, 1]


FAULTS: list[ClusterError] = [
    Unreachable("away"), Conflict("changed", status=409), Forbidden("no", status=403),
    NotFound("no namespace", status=404), ObjectRejected("no", status=422),
]  # fmt: skip


@pytest.mark.parametrize("verb", ["create", "get", "merge"])
@pytest.mark.parametrize("error", FAULTS, ids=lambda one: type(one).__name__)
async def test_a_lost_event_is_no_failure_and_the_next_one_is_written(verb: str, error: ClusterError) -> None:
    cluster = FakeCluster()
    await Log(cluster).post(event())
    cluster.fault = lambda asked, *_: error if asked == verb else None
    log = Log(cluster)

    await log.post(event())
    cluster.fault = lambda *_: None
    await log.post(event("another"))

    assert len(counts(cluster)) == 2


async def test_an_event_that_vanished_between_refusal_and_count_is_lost_quietly() -> None:
    cluster = FakeCluster()
    cluster.fault = lambda verb, *_: Conflict("exists", status=409) if verb == "create" else None

    await Log(cluster).post(event())

    assert counts(cluster) == []


@pytest.mark.parametrize("name", ["nano", "n" * 52])
def test_an_events_name_is_one_the_api_takes(name: str) -> None:
    of = fitting_owner()
    of["metadata"]["name"] = name

    made = event_manifest(event("\N{SNOWMAN} " * 3000, of=of), reporter="me")

    assert len(made["metadata"]["name"]) <= 253
    assert len(made["message"]) == 1024
    assert made["type"] == "Normal"
