"""`LoadWatch`: polls running loaders for the download progress of the model.

Runs beside the reconcile passes: a loader that does not answer delays none of them. Writes nothing; a pass
puts the progress into the status (`model_load`).
"""

import asyncio
from collections.abc import Callable, Mapping

from mamba_api import names
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import ReportInvalid, series
from mamba_operator.objects.concurrency import run_concurrently
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.objects.pod_trouble import is_downloading, is_loader
from mamba_operator.observation.snapshot import DownloadProgress

PERIOD = 10.0
"""Seconds between two polls; also the shortest time between two status writes that they cause."""
_WANTED = frozenset((names.METRIC_DOWNLOADED, names.METRIC_TO_DOWNLOAD))


def read_download(text: str) -> DownloadProgress:
    """(bytes fetched, bytes in all) from the `/metrics` text of a loader. Raises ReportInvalid."""
    found = {name: sum(value for _, value in samples) for name, samples in series(text, _WANTED).items()}
    try:
        return int(found[names.METRIC_DOWNLOADED]), int(found[names.METRIC_TO_DOWNLOAD])
    except (KeyError, ValueError, OverflowError) as error:
        raise ReportInvalid(f"no number of bytes in it: {error}") from None


class LoadWatch:
    """Of one operator that acts.

    Args:
        indices: what the watches hold.
        read: gives the `/metrics` of a pod.
        wake: called with each deployment whose progress changed.
    """

    def __init__(self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None]) -> None:
        self._indices, self._read, self._wake = indices, read, wake
        self._progress: dict[Key, Mapping[str, DownloadProgress]] = {}

    def progress(self, key: Key) -> Mapping[str, DownloadProgress]:
        """By name of a loader's pod that runs and answers: bytes fetched, of bytes in all."""
        return self._progress.get(key, {})

    async def run(self) -> None:
        """Poll periodically; ends only by cancellation."""
        while True:
            await self.poll()
            await asyncio.sleep(PERIOD)

    async def poll(self) -> None:
        """Poll the loaders of every deployment once, all concurrently."""
        loading = {
            key: pods
            for key in self._indices.keys(MAMBA_DEPLOYMENT)
            if (pods := [pod for pod in self._indices.of(POD, key) if _runs_download(pod)])
        }
        for key in self._progress.keys() - loading.keys():
            del self._progress[key]
        polls = {key: self._poll(key, pods) for key, pods in loading.items()}
        await run_concurrently(polls, "load_watch_broken")

    async def _poll(self, key: Key, pods: list[Manifest]) -> None:
        reports = await pod_reports(self._read, pods, read_download)
        # 0 of 0: it has yet to find out how much there is to fetch.
        progress = {pod: one for pod, one in reports.items() if one is not None and one[1] > 0}
        if progress != self._progress.get(key, {}):
            self._progress[key] = progress
            self._wake(key)


def _runs_download(pod: Manifest) -> bool:
    return is_downloading(pod) or (is_loader(pod) and (pod.get("status") or {}).get("phase") == "Running")
