"""`pod_reports`: reads the reports of several pods concurrently."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import structlog

from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.reports import ReportInvalid
from mamba_operator.objects.manifest import Manifest, name_of

log = structlog.get_logger(__name__)
Report = TypeVar("Report")


async def pod_reports(
    read: ReadMetrics, pods: Iterable[Manifest], parse: Callable[[str], Report]
) -> Mapping[str, Report | None]:
    """Return the report of each pod by its name; None = no answer, or one that `parse` refused."""

    async def read_report(pod: Manifest) -> Report | None:
        address = (pod.get("status") or {}).get("podIP")
        text = await read(str(address)) if address else None
        try:
            return parse(text) if text is not None else None
        except ReportInvalid as error:
            log.warning("pod_report_invalid", pod=name_of(pod), error=str(error))
            return None

    pods = list(pods)
    reports = await asyncio.gather(*map(read_report, pods))
    return {name_of(pod): report for pod, report in zip(pods, reports, strict=True)}
