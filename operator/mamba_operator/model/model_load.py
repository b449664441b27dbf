"""How far the download of a model to its cache is: what the loader's Job, its pods and the record tell. Pure.

Called by `plan`. Engines of a revision are made once its model is there; until then what runs stays. What was
downloaded is known by a hash of the URI, of the claim and of `restarted-at`: any other is downloaded anew.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.model.copies_in_use import commits_in_use
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
from mamba_operator.objects.pod_trouble import is_downloading, is_loader, last_words
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.observation.snapshot import DownloadProgress, Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.loader import ATTEMPTS, LOAD_KEY, REPORT_KEY, kept_by, loader_job, model_report
from mamba_planner.model_report import ModelReport
from mamba_settings.byte_size import binary_size

RETRY = 600.0
"""Seconds after a Job gave up until another is made: a Hub, a Secret or terms of use may be right by then."""
REPORT_LAG = 30.0
"""Seconds in which the pod of a finished Job may yet be seen; later it is gone, and its report with it."""

NO_POD = 60.0
"""Seconds after which a Job without a pod is not let make one. Its controller tells that in events alone."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """State of the download of the model, and what the pass has to do about it."""

    message: str
    """For a condition of the status."""
    report: ModelReport | None = None
    """Report on the downloaded files; None = the download is not complete."""
    failed: bool = False
    """The last attempts failed; somebody may have to act."""
    refused: bool = False
    """The cluster does not let the Job create its pod (a quota, most often)."""
    apply: Manifest | None = None
    """The Job or the report's ConfigMap to create."""
    keep: frozenset[Ref] = frozenset()
    """Children of the download that must not be deleted."""
    requeue_after: float | None = None
    """Seconds until time alone changes it."""


def model_load(context: Context, snapshot: Snapshot, now: datetime) -> ModelLoad | None:
    """None where the model is not kept on a volume that is made for it."""
    model = context.deployment.spec.model
    if model.cache is None or model.cache.size is None:
        return None
    children = context.children
    record_ref = Ref(CONFIG_MAP.kind, children.model_report)
    claim = snapshot.child(CLAIM.kind, children.model_cache)
    if claim is None:
        return ModelLoad(f"waits for {CLAIM.kind} {children.model_cache}", keep=frozenset({record_ref}))
    load = load_id(context.deployment, claim)
    job_ref = Ref(JOB.kind, children.loader(load))
    job = snapshot.children.get(job_ref)
    keep = frozenset({record_ref, job_ref})
    pods = (
        []
        if job is None
        else sorted((pod for pod in snapshot.pods if _belongs_to(pod, job)), key=_creation_key)
    )
    kept_up = next((pod for pod in pods if _is_kept_up(pod)), None)
    if (known := _recorded(snapshot.children.get(record_ref), load)) is not None:
        # A Job whose pod another container keeps up never ends, nor does what it holds of the volume.
        return ModelLoad(f"{model.uri} is downloaded", known, keep=keep - {job_ref} if kept_up else keep)
    in_use = commits_in_use(context, snapshot)
    if job is not None and in_use is not None:
        # What one may remove stays as it was when it was made, whichever engines have ended since.
        in_use = kept_by(job)
    made = sealed(loader_job(context, load, in_use))
    if job is None:
        if (other := _still_running(snapshot.pods)) is not None:
            return ModelLoad(f"waits for pod {other}, which downloads to the same volume, to end", keep=keep)
        if in_use is not None and _would_go(snapshot.children.get(record_ref), in_use):
            # The record goes first: it must never tell of a copy that the loader has removed.
            return ModelLoad(_download_text(model.uri, children), keep=keep - {record_ref})
        return ModelLoad(_download_text(model.uri, children), apply=made, keep=keep)
    again = ModelLoad(_download_text(model.uri, children), keep=keep - {job_ref})
    if is_terminating(job):
        return again
    since = _condition(job, "Complete")
    if (done := _done(pods, kept_up, complete=since is not None)) is not None:
        report = ModelReport.read(str(_ended(done).get("message") or ""))
        record = sealed(model_report(context, load, report))
        return ModelLoad(f"{model.uri} is downloaded", report, apply=record, keep=keep)
    if since:
        if (left := REPORT_LAG - _age(since, now)) > 0:
            return ModelLoad(f"waits for the report of {job_ref}", keep=keep, requeue_after=left)
        return again
    if annotation(job, names.ANNOTATION_SPEC_HASH) != annotation(made, names.ANNOTATION_SPEC_HASH):
        # What it is made of cannot change: an image that was corrected needs another one.
        return again
    if since := _condition(job, "Failed"):
        left = RETRY - _age(since, now)
        if left <= 0:
            return again
        at = timestamp(now + timedelta(seconds=left))
        detail = f"{_failure(pods, job)}; tried again at {at}, and at once when {job_ref} is deleted"
        return ModelLoad(f"{job_ref} gave up: {detail}", failed=True, keep=keep, requeue_after=left)
    if kept_up is not None:
        detail = _failure_message(kept_up)
        detail += f"; another container keeps the pod up: tried again when {job_ref} is deleted"
        return ModelLoad(detail, failed=True, keep=keep)
    attempts = int((job.get("status") or {}).get("failed") or 0)
    wait = None if pods or attempts else _until_refused(job, now)
    if wait is not None and wait <= 0:
        detail = f"{job_ref} gets no pod: `kubectl describe job {job_ref.name}` says why, most often a quota"
        detail += f"; {_LOADER_FIELD} sets its resources"
        return ModelLoad(detail, refused=True, keep=keep)
    message = f"{_download_text(model.uri, children)}, attempt {attempts + 1} of {ATTEMPTS}"
    if running := next((name_of(pod) for pod in pods if _phase(pod) in ("Pending", "Running")), None):
        message += f" by pod {running}{_progress_text(snapshot.downloads.get(running))}"
    if attempts:
        message += f"; the last one: {_failure(pods, job)}"
    return ModelLoad(message, failed=attempts > 1, keep=keep, requeue_after=wait)


def downloads_in_words(pods: Iterable[Manifest], fetched: Mapping[str, DownloadProgress]) -> str:
    """How far engine pods are that download the model to a claim of the user's; empty where none does."""
    downloading = sorted(name_of(pod) for pod in pods if is_downloading(pod))
    said = "; ".join(f"pod {name}{_progress_text(fetched.get(name))}" for name in downloading)
    return f"downloads the model before it starts, or waits for another that does: {said}" if said else ""


def load_id(deployment: MambaDeployment, claim: Manifest) -> str:
    """Hash of what is downloaded, and where to."""
    restart = deployment.metadata.annotations.get(names.ANNOTATION_RESTART, "")
    return digest([deployment.spec.model.uri, metadata(claim).get("uid"), restart])


def _is_kept_up(pod: Manifest) -> bool:
    """Whether the loader has ended and another container runs on. Without one a kubelet has yet to say that
    the pod ended, which it does some time after the container."""
    states = [one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()]
    return bool(_ended(pod)) and any(state.get("running") is not None for state in states)


def _done(pods: list[Manifest], kept_up: Manifest | None, *, complete: bool) -> Manifest | None:
    """The pod whose loader has downloaded it all."""
    if kept_up is not None and _ended(kept_up).get("exitCode") == 0:
        return kept_up
    return next((pod for pod in pods if _phase(pod) == "Succeeded"), None) if complete else None


def _until_refused(job: Manifest, now: datetime) -> float | None:
    """Seconds until a Job that has no pod counts as refused one; None while it is not to make any."""
    started = parse_timestamp(str((job.get("status") or {}).get("startTime")))
    suspended = (job.get("spec") or {}).get("suspend")
    return None if started is None or suspended else NO_POD - (now - started).total_seconds()


def _download_text(uri: str, children: names.Children) -> str:
    return f"downloads {uri} to {CLAIM.kind} {children.model_cache}"


def _progress_text(fetched: DownloadProgress | None) -> str:
    if fetched is None:
        return ", whose log tells how far it is"
    return f": {binary_size(fetched[0])} of {binary_size(fetched[1])}"


def _recorded(record: Manifest | None, load: str) -> ModelReport | None:
    data: Any = (record or {}).get("data")
    if not isinstance(data, dict) or data.get(LOAD_KEY) != load:
        return None
    return ModelReport.read(str(data.get(REPORT_KEY)))


def _would_go(record: Manifest | None, in_use: Collection[str]) -> bool:
    """Tell whether the record is of a copy that the next loader may remove."""
    data: Any = (record or {}).get("data")
    if not isinstance(data, dict):
        return False
    return ModelReport.read(str(data.get(REPORT_KEY))).commit not in in_use


def _still_running(pods: Iterable[Manifest]) -> str | None:
    """A loader that has not ended, of a Job that is gone or going."""
    found = (name_of(pod) for pod in pods if is_loader(pod) and _phase(pod) not in ("Succeeded", "Failed"))
    return min(found, default=None)


def _belongs_to(pod: Manifest, job: Manifest) -> bool:
    uid = metadata(job).get("uid")
    return is_loader(pod) and any(one.get("uid") == uid for one in metadata(pod).get("ownerReferences") or ())


def _creation_key(pod: Manifest) -> tuple[str, str]:
    return str(metadata(pod).get("creationTimestamp") or ""), name_of(pod)


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _ended(pod: Manifest) -> dict[str, Any]:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == names.LOADER_CONTAINER:
            ended = (container.get("state") or {}).get("terminated")
            return ended if isinstance(ended, dict) else {}
    return {}


def _failure(pods: list[Manifest], job: Manifest) -> str:
    """What the last attempt ended with, in its own words and with what to do."""
    failed = [pod for pod in pods if _phase(pod) == "Failed"]
    if not failed:
        message = (_conditions(job).get("Failed") or {}).get("message") or "its pods are gone"
        return f"{message}; look at the events of the Job"
    return _failure_message(failed[-1])


def _failure_message(pod: Manifest) -> str:
    ended = _ended(pod)
    if ended.get("reason") == "OOMKilled":
        return f"pod {name_of(pod)} was killed for memory; raise the limit of {_LOADER_FIELD}"
    words = last_words(ended or pod.get("status") or {})
    return (
        f"pod {name_of(pod)}: {words}; check spec.model.uri, spec.model.tokenSecretRef and the way to the Hub"
    )


_LOADER_FIELD = "the initContainer loader in spec.podTemplate"
"""Where its resources are said, wherever it runs."""


def _conditions(job: Manifest) -> dict[str, dict[str, Any]]:
    return {str(one.get("type")): one for one in (job.get("status") or {}).get("conditions") or ()}


def _condition(job: Manifest, kind: str) -> str | None:
    """Since when a condition of the Job is true; None where it is not."""
    found = _conditions(job).get(kind) or {}
    return str(found.get("lastTransitionTime") or "-") if found.get("status") == "True" else None


def _age(since: str, now: datetime) -> float:
    """Seconds; of a time that cannot be read, many."""
    then = parse_timestamp(since)
    return (now - then).total_seconds() if then is not None else float("inf")
