"""`pod_reports`: what pods say of themselves, asked all at the same time."""

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
    read: ReadMetrics, pods: Iterable[Manifest], understood: Callable[[str], Report]
) -> Mapping[str, Report | None]:
    """By name of the pod; None = it did not answer, or said what is not `understood` (ReportInvalid)."""

    async def one(pod: Manifest) -> Report | None:
        address = (pod.get("status") or {}).get("podIP")
        text = await read(str(address)) if address else None
        try:
            return understood(text) if text is not None else None
        except ReportInvalid as error:
            log.warning("pod_not_understood", pod=name_of(pod), error=str(error))
            return None

    those = list(pods)
    answers = await asyncio.gather(*map(one, those))
    return {name_of(pod): answer for pod, answer in zip(those, answers, strict=True)}
