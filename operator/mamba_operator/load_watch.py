"""`LoadWatch`: while loaders run, asks them how many bytes of the model they have.

Beside the reconcile passes, as the autoscaler: a loader that does not answer delays none of them. It writes
nothing; a pass puts what was told into the status (`model_load`).
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
from mamba_operator.snapshot import DownloadProgress

PERIOD = 10.0
"""Seconds between two looks, and so between two writes of the status of one deployment because of them."""
_WANTED = frozenset((names.METRIC_DOWNLOADED, names.METRIC_TO_DOWNLOAD))


def read_download(text: str) -> DownloadProgress:
    """What a loader says. Raises ReportInvalid."""
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
        wake: told of which deployment a loader got further.
    """

    def __init__(self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None]) -> None:
        self._indices, self._read, self._wake = indices, read, wake
        self._progress: dict[Key, Mapping[str, DownloadProgress]] = {}

    def progress(self, key: Key) -> Mapping[str, DownloadProgress]:
        """By name of a loader's pod that runs and answers: bytes fetched, of bytes in all."""
        return self._progress.get(key, {})

    async def run(self) -> None:
        """Look for ever; ends only by cancellation."""
        while True:
            await self.poll()
            await asyncio.sleep(PERIOD)

    async def poll(self) -> None:
        """Once at every deployment whose loader runs, all at the same time."""
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
        # Before it knows how much there is to fetch it says nothing: 0 of 0.
        progress = {pod: one for pod, one in reports.items() if one is not None and one[1] > 0}
        if progress != self._progress.get(key, {}):
            self._progress[key] = progress
            self._wake(key)


def _runs_download(pod: Manifest) -> bool:
    return is_downloading(pod) or (is_loader(pod) and (pod.get("status") or {}).get("phase") == "Running")
