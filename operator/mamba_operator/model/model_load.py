"""`model_load`: the state of a model's download to its volume, from the Job, its pods and its record. Pure.

Called by `plan`. Engines of a new revision are created once its model is downloaded; until then the running
engines stay. A download is identified by a hash of the URIs of the model and its adapters, of the claim, and
of the annotation `restarted-at`: if one of them changes, the model is downloaded again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import cached_property
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.model.loader_pods import (
    LOADER_FIELD,
    age,
    failure_text,
    has_running_sidecar,
    phase_of,
    pod_failure_text,
    pods_of,
    running_loader,
    terminated_state,
    true_since,
)
from mamba_operator.model.model_cache import commits_in_use
from mamba_operator.objects.kinds import CLAIM, CONFIG_MAP, JOB
from mamba_operator.objects.manifest import (
    Manifest,
    Ref,
    annotation,
    digest,
    is_terminating,
    metadata,
    name_of,
    sealed,
)
from mamba_operator.objects.pod_trouble import is_downloading
from mamba_operator.objects.recorded_status import parse_timestamp
from mamba_operator.observation.snapshot import DownloadProgress, Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.loader import ATTEMPTS, LOAD_KEY, REPORT_KEY, kept_by, loader_job, model_report
from mamba_planner.model_report import ModelReport
from mamba_settings.byte_size import binary_size

RETRY_SECONDS = 600.0
"""Seconds after a Job has failed until the next one is created. The Hub, a Secret or the accepted terms of
use may have changed by then."""
REPORT_LAG_SECONDS = 30.0
"""Seconds after the completion of a Job in which its pod may still appear. After that, the pod and its report
count as lost."""
NO_POD_SECONDS = 60.0
"""Seconds after which a Job without a pod counts as refused. Its controller reports the cause only in
events."""


class LoadPhase(Enum):
    """Phase of a download whose claim exists. `_RESULTS` has one function for each phase."""

    RECORDED = auto()
    """The record says that the model is downloaded."""
    VOLUME_BUSY = auto()
    """The loader of an earlier Job still writes to the volume."""
    RECORD_OUTDATED = auto()
    """The record describes a copy that the next loader may remove."""
    JOB_MISSING = auto()
    """A Job has to be created."""
    JOB_DISCARDED = auto()
    """The Job is of no use any more: it is being deleted, is outdated, has lost its report, or is to be
    repeated."""
    REPORTED = auto()
    """A loader has downloaded the model and its pod holds the report."""
    REPORT_PENDING = auto()
    """The Job is complete, and its pod with the report has not been observed yet."""
    GAVE_UP = auto()
    """All attempts of the Job have failed."""
    SIDECAR_RUNS = auto()
    """The loader has failed, and another container keeps its pod running."""
    POD_REFUSED = auto()
    """The cluster does not let the Job create its pod."""
    RUNNING = auto()
    """The Job downloads the model, or is about to."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The progress of the download of a model, and the object that a pass has to write for it."""

    message: str
    """Text for a condition of the status."""
    report: ModelReport | None = None
    """Report on the downloaded files; None = the download is not complete."""
    failed: bool = False
    """Whether the last attempts have failed, so that a user may have to act."""
    refused: bool = False
    """Whether the cluster does not let the Job create its pod (a quota, most often)."""
    apply: Manifest | None = None
    """Job, or ConfigMap with the report, to create; None = nothing is to be created."""
    keep: frozenset[Ref] = frozenset()
    """Children of the download that must not be deleted."""
    requeue_after: float | None = None
    """Seconds until the state changes by time alone; None = it does not."""


@dataclass(frozen=True)
class _Download:
    """The objects that one download consists of: its claim, Job, pods and record."""

    context: Context
    snapshot: Snapshot
    now: datetime
    claim: Manifest

    @property
    def uri(self) -> str:
        return self.context.deployment.spec.model.uri

    @cached_property
    def load_id(self) -> str:
        return load_id(self.context.deployment, self.claim)

    @cached_property
    def job_ref(self) -> Ref:
        return Ref(JOB.kind, self.context.children.loader(self.load_id))

    @cached_property
    def record_ref(self) -> Ref:
        return Ref(CONFIG_MAP.kind, self.context.children.model_report)

    @property
    def keep(self) -> frozenset[Ref]:
        return frozenset({self.record_ref, self.job_ref})

    @property
    def job(self) -> Manifest | None:
        return self.snapshot.children.get(self.job_ref)

    @property
    def record(self) -> Manifest | None:
        return self.snapshot.children.get(self.record_ref)

    @cached_property
    def recorded_report(self) -> ModelReport | None:
        data: Any = (self.record or {}).get("data")
        if not isinstance(data, dict) or data.get(LOAD_KEY) != self.load_id:
            return None
        return ModelReport.read(str(data.get(REPORT_KEY)))

    @cached_property
    def pods(self) -> list[Manifest]:
        return pods_of(self.job, self.snapshot.pods)

    @cached_property
    def kept_running(self) -> Manifest | None:
        """Pod whose loader has ended while another of its containers runs; None = there is none."""
        return next(filter(has_running_sidecar, self.pods), None)

    @cached_property
    def in_use(self) -> frozenset[str] | None:
        """Commits whose copies the loader must not remove; None = it must not remove any copy."""
        in_use = commits_in_use(self.context, self.snapshot)
        if self.job is not None and in_use is not None:
            # A Job keeps what it was created with, whichever engines have ended since.
            return kept_by(self.job)
        return in_use

    @cached_property
    def desired_job(self) -> Manifest:
        return sealed(loader_job(self.context, self.load_id, self.in_use))

    @property
    def finished_pod(self) -> Manifest | None:
        """The pod whose loader has downloaded everything; None = there is none."""
        if self.kept_running is not None and terminated_state(self.kept_running).get("exitCode") == 0:
            return self.kept_running
        if self.job is None or true_since(self.job, "Complete") is None:
            return None
        return next((pod for pod in self.pods if phase_of(pod) == "Succeeded"), None)

    @property
    def failed_attempts(self) -> int:
        return int(((self.job or {}).get("status") or {}).get("failed") or 0)

    @property
    def seconds_until_refused(self) -> float | None:
        """Seconds until the Job counts as refused because it has no pod; None = it cannot count as refused.

        It cannot while it has a pod or a failed attempt, has not started, or is suspended.
        """
        if self.job is None or self.pods or self.failed_attempts:
            return None
        started = parse_timestamp(str((self.job.get("status") or {}).get("startTime")))
        suspended = (self.job.get("spec") or {}).get("suspend")
        if started is None or suspended:
            return None
        return NO_POD_SECONDS - (self.now - started).total_seconds()

    @property
    def text(self) -> str:
        adapters = len(self.context.deployment.spec.model.downloaded_adapters)
        beside = f" and its {'adapter' if adapters == 1 else f'{adapters} adapters'}" if adapters else ""
        return f"a Job downloads {self.uri}{beside} to {CLAIM.kind} {self.context.children.model_cache}"


def model_load(context: Context, snapshot: Snapshot, now: datetime) -> ModelLoad:
    """Return the state of the download of a model that has a download Job (`Model.has_download_job`)."""
    children = context.children
    claim = snapshot.child(CLAIM.kind, children.model_cache)
    if claim is None:
        record = Ref(CONFIG_MAP.kind, children.model_report)
        return ModelLoad(
            f"the operator is creating {CLAIM.kind} {children.model_cache}, and the download begins once it "
            "exists",
            keep=frozenset({record}),
        )
    download = _Download(context, snapshot, now, claim)
    return _RESULTS[_phase(download)](download)


def load_id(deployment: MambaDeployment, claim: Manifest) -> str:
    """Return the hash that identifies a download: model, adapters, volume and the last requested restart."""
    restart = deployment.metadata.annotations.get(names.ANNOTATION_RESTART, "")
    adapters = [adapter.uri for adapter in deployment.spec.model.downloaded_adapters]
    return digest([deployment.spec.model.uri, metadata(claim).get("uid"), restart, *adapters])


def _phase(download: _Download) -> LoadPhase:
    if download.recorded_report is not None:
        return LoadPhase.RECORDED
    if download.job is not None:
        return _phase_of_job(download, download.job)
    if running_loader(download.snapshot.pods) is not None:
        return LoadPhase.VOLUME_BUSY
    if download.in_use is not None and _may_be_removed(download.record, download.in_use):
        return LoadPhase.RECORD_OUTDATED
    return LoadPhase.JOB_MISSING


def _phase_of_job(download: _Download, job: Manifest) -> LoadPhase:
    if is_terminating(job):
        return LoadPhase.JOB_DISCARDED
    if download.finished_pod is not None:
        return LoadPhase.REPORTED
    if completed_at := true_since(job, "Complete"):
        pending = age(completed_at, download.now) < REPORT_LAG_SECONDS
        return LoadPhase.REPORT_PENDING if pending else LoadPhase.JOB_DISCARDED
    desired = annotation(download.desired_job, names.ANNOTATION_SPEC_HASH)
    if annotation(job, names.ANNOTATION_SPEC_HASH) != desired:
        # The pod template of a Job cannot be changed, so a corrected image needs another Job.
        return LoadPhase.JOB_DISCARDED
    if failed_at := true_since(job, "Failed"):
        waits = age(failed_at, download.now) < RETRY_SECONDS
        return LoadPhase.GAVE_UP if waits else LoadPhase.JOB_DISCARDED
    if download.kept_running is not None:
        return LoadPhase.SIDECAR_RUNS
    left = download.seconds_until_refused
    return LoadPhase.POD_REFUSED if left is not None and left <= 0 else LoadPhase.RUNNING


def _recorded(download: _Download) -> ModelLoad:
    keep = download.keep
    if download.kept_running is not None:
        # A Job whose pod is kept running by another container never ends and never releases the volume.
        keep -= {download.job_ref}
    return ModelLoad(f"{download.uri} is downloaded", download.recorded_report, keep=keep)


def _volume_busy(download: _Download) -> ModelLoad:
    pod = running_loader(download.snapshot.pods)
    message = f"the download begins once pod {pod} has ended, because it still downloads to this volume"
    return ModelLoad(message, keep=download.keep)


def _record_outdated(download: _Download) -> ModelLoad:
    # The record is deleted first: it must never describe a copy that the loader has removed.
    return ModelLoad(download.text, keep=download.keep - {download.record_ref})


def _job_missing(download: _Download) -> ModelLoad:
    return ModelLoad(download.text, apply=download.desired_job, keep=download.keep)


def _job_discarded(download: _Download) -> ModelLoad:
    return ModelLoad(download.text, keep=download.keep - {download.job_ref})


def _reported(download: _Download) -> ModelLoad:
    pod = download.finished_pod
    assert pod is not None
    report = ModelReport.read(str(terminated_state(pod).get("message") or ""))
    record = sealed(model_report(download.context, download.load_id, report))
    return ModelLoad(f"{download.uri} is downloaded", report, apply=record, keep=download.keep)


def _report_pending(download: _Download) -> ModelLoad:
    left = REPORT_LAG_SECONDS - _age_of(download, "Complete")
    message = f"{download.uri} is downloaded, and the operator waits for the report of {download.job_ref}"
    return ModelLoad(message, keep=download.keep, requeue_after=left)


def _gave_up(download: _Download) -> ModelLoad:
    assert download.job is not None
    left = RETRY_SECONDS - _age_of(download, "Failed")
    retry_at = timestamp(download.now + timedelta(seconds=left))
    message = (
        f"{download.job_ref} gave up after {ATTEMPTS} attempts: {failure_text(download.pods, download.job)}; "
        f"the operator tries again at {retry_at}; to try again at once, delete {download.job_ref}"
    )
    return ModelLoad(message, failed=True, keep=download.keep, requeue_after=left)


def _sidecar_runs(download: _Download) -> ModelLoad:
    assert download.kept_running is not None
    message = (
        f"{pod_failure_text(download.kept_running)}; another container keeps the pod running: to try again, "
        f"delete {download.job_ref}"
    )
    return ModelLoad(message, failed=True, keep=download.keep)


def _pod_refused(download: _Download) -> ModelLoad:
    message = (
        f"the model is not downloaded, because the cluster creates no pod for {download.job_ref}: see "
        f"`kubectl describe job {download.job_ref.name}`; the most frequent cause is a quota, and "
        f"{LOADER_FIELD} sets the resources of the pod"
    )
    return ModelLoad(message, refused=True, keep=download.keep)


def _running(download: _Download) -> ModelLoad:
    assert download.job is not None
    attempts = download.failed_attempts
    message = f"{download.text}, attempt {attempts + 1} of {ATTEMPTS}"
    running = (name_of(pod) for pod in download.pods if phase_of(pod) in ("Pending", "Running"))
    if pod := next(running, None):
        message += f" by pod {pod}{_progress_text(download.snapshot.downloads.get(pod))}"
    if attempts:
        message += f"; the previous attempt failed: {failure_text(download.pods, download.job)}"
    wait = download.seconds_until_refused
    return ModelLoad(message, failed=attempts > 1, keep=download.keep, requeue_after=wait)


_RESULTS: dict[LoadPhase, Callable[[_Download], ModelLoad]] = {
    LoadPhase.RECORDED: _recorded,
    LoadPhase.VOLUME_BUSY: _volume_busy,
    LoadPhase.RECORD_OUTDATED: _record_outdated,
    LoadPhase.JOB_MISSING: _job_missing,
    LoadPhase.JOB_DISCARDED: _job_discarded,
    LoadPhase.REPORTED: _reported,
    LoadPhase.REPORT_PENDING: _report_pending,
    LoadPhase.GAVE_UP: _gave_up,
    LoadPhase.SIDECAR_RUNS: _sidecar_runs,
    LoadPhase.POD_REFUSED: _pod_refused,
    LoadPhase.RUNNING: _running,
}


def _age_of(download: _Download, condition: str) -> float:
    since = true_since(download.job or {}, condition)
    return age(since, download.now) if since is not None else 0.0


def _may_be_removed(record: Manifest | None, in_use: Collection[str]) -> bool:
    """Return whether the next loader may remove the copy that the record describes."""
    data: Any = (record or {}).get("data")
    if not isinstance(data, dict):
        return False
    return not ModelReport.read(str(data.get(REPORT_KEY))).commits <= frozenset(in_use)


def downloads_in_words(pods: Iterable[Manifest], fetched: Mapping[str, DownloadProgress]) -> str:
    """Describe engine pods that download the model to a claim of the user; empty where none does."""
    downloading = sorted(name_of(pod) for pod in pods if is_downloading(pod))
    text = "; ".join(f"pod {name}{_progress_text(fetched.get(name))}" for name in downloading)
    return f"engine pods download the model before their engines start: {text}" if text else ""


def _progress_text(fetched: DownloadProgress | None) -> str:
    if fetched is None:
        return ", whose log shows the progress"
    return f": {binary_size(fetched[0])} of {binary_size(fetched[1])}"
