"""Progress of a loader, from its pod into the status, while it runs and answers."""

from typing import Any

import pytest

from mamba_api import names
from mamba_operator.autoscale.reports import ReportInvalid
from mamba_operator.model.download_poller import DownloadPoller, read_download
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest

KEY, OTHER = Key("models", "nano"), Key("models", "other")


def text(done: float, total: float) -> str:
    return f"{names.METRIC_DOWNLOADED} {done}\n{names.METRIC_TO_DOWNLOAD} {total}\n"


def pod(name: str, component: Any = "loader", phase: str = "Running") -> Manifest:
    labels = names.labels("nano", component)
    meta = {"name": name, "namespace": "models", "labels": labels}
    return {"metadata": meta, "status": {"phase": phase, "podIP": name}}


class World:
    """One deployment with pods, another one without; what pods say is set by the test."""

    def __init__(self, *pods: Manifest) -> None:
        self.pods = list(pods)
        self.reports: dict[str, str | None] = {}
        self.polled: list[str] = []
        self.woken: list[Key] = []
        indices = Indices()
        indices.take(
            {index_id(MAMBA_DEPLOYMENT): {KEY: [{}], OTHER: [{}]}, index_id(POD): {KEY: self.pods}}  # type: ignore[arg-type]
        )
        self.watch = DownloadPoller(indices, self._read, self.woken.append)

    async def _read(self, address: str) -> str | None:
        self.polled.append(address)
        return self.reports.get(address)


async def test_a_loader_that_gets_further_wakes_its_deployment_and_one_that_does_not_wakes_nobody() -> None:
    world = World(pod("a"))
    for done, woken in ((1, 1), (1, 1), (7, 2)):
        world.reports["a"] = text(done, 10)
        await world.watch.poll()
        assert world.watch.progress(KEY) == {"a": (done, 10)}
        assert world.woken == [KEY] * woken
    assert world.watch.progress(OTHER) == {}


async def test_only_loaders_that_run_are_asked() -> None:
    world = World(pod("waits", phase="Pending"), pod("done", phase="Succeeded"), pod("door", "gateway"))
    await world.watch.poll()
    assert (world.polled, world.woken) == ([], [])


async def test_what_was_told_goes_with_the_pod() -> None:
    world = World(pod("a"))
    world.reports["a"] = text(1, 10)
    await world.watch.poll()
    world.pods.clear()
    await world.watch.poll()
    assert world.watch.progress(KEY) == {}


@pytest.mark.parametrize("said", [None, "nonsense {", "", text(0, 0), text(1, float("nan"))])
async def test_a_loader_that_tells_nothing_is_one_whose_log_is_to_be_read(said: str | None) -> None:
    world = World(pod("a"))
    world.reports["a"] = said
    await world.watch.poll()
    assert (world.watch.progress(KEY), world.woken) == ({}, [])


def test_half_a_report_is_none() -> None:
    with pytest.raises(ReportInvalid, match=names.METRIC_TO_DOWNLOAD):
        read_download(f"{names.METRIC_DOWNLOADED} 1\n")


async def test_an_engine_that_downloads_before_it_starts_is_asked() -> None:
    filling = pod("fills", "engine", phase="Pending")
    filling["status"]["initContainerStatuses"] = [{"name": names.LOADER_CONTAINER, "state": {"running": {}}}]
    world = World(filling, pod("starts", "engine", phase="Pending"))
    world.reports["fills"] = text(1, 10)
    await world.watch.poll()
    assert world.polled == ["fills"]
    assert world.watch.progress(KEY) == {"fills": (1, 10)}
