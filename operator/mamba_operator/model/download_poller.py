"""`DownloadPoller`: polls running loaders for the download progress of the model.

Wired by `main`; a pass puts the progress into the status (`model_load`).
"""

from collections.abc import Callable, Mapping

from mamba_api import names
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import ReportInvalid, series
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import is_downloading, is_loader
from mamba_operator.observation.snapshot import DownloadProgress

DOWNLOAD_POLL_SECONDS = 10.0
"""Seconds between two polls, and so between two status writes that they cause."""
_METRICS = frozenset((names.METRIC_DOWNLOADED, names.METRIC_TO_DOWNLOAD))


def read_download(text: str) -> DownloadProgress:
    """Return (bytes fetched, total bytes) from the `/metrics` text of a loader.

    Raises:
        ReportInvalid: the text lacks one of the two numbers.
    """
    sums = {name: sum(value for _, value in samples) for name, samples in series(text, _METRICS).items()}
    try:
        return int(sums[names.METRIC_DOWNLOADED]), int(sums[names.METRIC_TO_DOWNLOAD])
    except (KeyError, ValueError, OverflowError) as error:
        raise ReportInvalid(f"the number of bytes is missing: {error}") from None


class DownloadPoller(PodPoller[list[Manifest], Mapping[str, DownloadProgress]]):
    """The part of the operator that polls loaders for their progress. One instance per active operator.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        read: reads the `/metrics` of a pod.
        wake: called with each deployment whose progress changed.
    """

    def __init__(self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None]) -> None:
        super().__init__(indices, wake, period=DOWNLOAD_POLL_SECONDS, failure_event="download_poll_failed")
        self._read = read

    def progress(self, key: Key) -> Mapping[str, DownloadProgress]:
        """Return, by name of a running loader pod that answers: (bytes fetched, total bytes)."""
        return self._reports.get(key, {})

    def _select(self, key: Key) -> list[Manifest] | None:
        return [pod for pod in self._indices.of(POD, key) if _runs_download(pod)] or None

    async def _update(self, key: Key, selection: list[Manifest]) -> bool:
        reports = await pod_reports(self._read, selection, read_download)
        # A loader that reports 0 of 0 bytes does not know yet how much there is to fetch.
        progress = {pod: report for pod, report in reports.items() if report is not None and report[1] > 0}
        if progress == self._reports.get(key, {}):
            return False
        self._reports[key] = progress
        return True


def _runs_download(pod: Manifest) -> bool:
    return is_downloading(pod) or (is_loader(pod) and (pod.get("status") or {}).get("phase") == "Running")
