"""`make_plan`: from a snapshot to what has to change, each change with its reason. Pure.

The heart of the operator: called by `reconcile` for every wake, whatever the event was. It decides and
touches nothing; `apply` carries it out and `status` tells what came of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from pydantic import ValidationError

from mamba_api import names
from mamba_api.errors import ContractError
from mamba_api.v1alpha1 import MambaDeployment, ScalingStatus, WorkloadStatus
from mamba_api.v1alpha1.documents import explain
from mamba_api.v1alpha1.profiles import Profiles, with_profile
from mamba_operator.autoscale.scale import scaling_status, wake_text
from mamba_operator.chosen_for import in_force
from mamba_operator.claim import kept
from mamba_operator.drift import drift, made_of
from mamba_operator.index_trouble import IndexTrouble, index_trouble
from mamba_operator.model_load import ModelLoad, model_load
from mamba_operator.objects.errors import InvalidPatch
from mamba_operator.objects.kinds import CLAIM
from mamba_operator.objects.manifest import Manifest, Ref, annotation, is_terminating, metadata, ref, sealed
from mamba_operator.objects.pod_trouble import is_being_created, waits_for_mounts
from mamba_operator.objects.record import readable
from mamba_operator.planned_for import verdict_for
from mamba_operator.render import render
from mamba_operator.render.access import admin_secret
from mamba_operator.render.context import Context
from mamba_operator.render.default_images import OF_THIS_VERSION, DefaultImages
from mamba_operator.render.engine import engine_revision, last_ready
from mamba_operator.render.engine_key import engine_key_secret
from mamba_operator.render.revision import revision_in
from mamba_operator.render.scrapers import OPERATOR, PROMETHEUS, Scraper
from mamba_operator.render.tuning import AGAIN, Refusal, Tune, to_tell, tuning
from mamba_operator.reported_plan import with_report
from mamba_operator.rollout.engine_key import engine_key, has_key
from mamba_operator.rollout.in_place import replaced_in_place
from mamba_operator.rollout.rollback import Choice, FailedRevision, choose_revision, is_ready
from mamba_operator.snapshot import Snapshot
from mamba_operator.verdict import DoesNotFit, Fits, Invalid, NotServed, Verdict
from mamba_planner.shipped_profiles import SHIPPED

WAITING_PERIOD = 30.0
"""Seconds to the next look while pods wait for what they mount, or for a kind: nothing tells when a Secret
goes or a CRD comes."""


class Change(StrEnum):
    """Why a child is written or removed."""

    MISSING = "Missing"
    OUTDATED = "Outdated"
    DRIFTED = "Drifted"
    NOT_NEEDED = "NotNeeded"
    RECORDED = "Recorded"
    """A note for later; nothing runs otherwise for it."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Make a child be as `manifest` says."""

    manifest: Manifest
    change: Change
    detail: str = ""
    """For people: the fields that drifted."""
    create_only: bool = False
    """Never overwrite: the content was made once."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a child that is not wanted any more."""

    ref: Ref
    uid: str
    change: Change = Change.NOT_NEEDED


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """What has to change, and what was decided on the way."""

    deployment: MambaDeployment | None = None
    """The parsed object, its profile filled in; None when it is gone, going, or broken."""
    verdict: Verdict | None = None
    """What the planner says; None when the object is gone or going."""
    replicas: int | None = None
    """Engines wanted; None when nothing may be changed."""
    applies: tuple[Apply, ...] = ()
    deletes: tuple[Delete, ...] = ()
    not_served: tuple[str, ...] = ()
    """Why children that the spec asks for cannot be had in this cluster."""
    terminating: tuple[Ref, ...] = ()
    """Children that must be gone before they can be made again."""
    again_in: float | None = None
    """Seconds until time alone changes the plan."""
    index_trouble: IndexTrouble | None = None
    """What gateways say of the Redis of the prefix index."""
    plan_differs: str | None = None
    """What a new revision would be planned as, where that is another plan than the serving one."""
    tunes: tuple[Tune, ...] = ()
    """Engines to be told settings that they take over while they serve."""
    refusals: tuple[Refusal, ...] = ()
    """Those of them that were told and did not take it."""
    ready_revision: str | None = None
    """Label of the engine pods that were last ready, all of them."""
    failed: FailedRevision | None = None
    """The revision of the spec, where that did not become ready and engines went back."""
    scaling: ScalingStatus | None = None
    """What is decided about the number of engines; None where spec.replicas is what runs."""
    as_wanted: Mapping[str, str] = field(default_factory=dict)
    """As `Snapshot.as_wanted`, of all children that are as wanted now."""
    in_place: bool = False
    """An old engine goes before a new one comes: no node has room for both."""
    load: ModelLoad | None = None
    """How far the download of the model is, while that is not done."""
    key_waits: bool = False
    """Engines ask gateways for a key once no gateway is left that shows none."""
    cache_kept: str | None = None
    """Why the claim of the model cache stays as it is though the spec says otherwise."""
    workload: WorkloadStatus | None = None
    """The traffic that engines measured, and a strategy that does better for it."""
    announced: str | None = None
    """That strategy in words, once it was announced."""


def make_plan(
    snapshot: Snapshot,
    *,
    now: datetime,
    new_token: Callable[[], str],
    key_id: str = "",
    images: DefaultImages = OF_THIS_VERSION,
    scrapers: tuple[Scraper, ...] = PROMETHEUS,
    operator: Scraper = OPERATOR,
    profiles: Profiles = SHIPPED,
) -> ReconcilePlan:
    """What to do about one MambaDeployment.

    Args:
        snapshot: what was observed.
        now: the time, with a time zone.
        new_token: makes the admin token; called only when it may be needed.
        key_id: key it is made from; empty: it is fresh each time, and engines cannot be told anything.
        images: for pods whose images the object does not name.
        scrapers: who may read the engines' metrics.
        operator: the operator's own pods.
        profiles: what `spec.resources.profile` may name.
    """
    if snapshot.owner is None or is_terminating(snapshot.owner):
        # Owner references let the cluster collect the children; making one now would only race with that.
        return ReconcilePlan()
    try:
        deployment = MambaDeployment.model_validate(readable(snapshot.owner), by_alias=True, by_name=False)
    except ValidationError as error:
        return ReconcilePlan(verdict=Invalid("; ".join(explain(error))))
    try:
        deployment = with_profile(deployment, profiles)
    except ContractError as error:
        return ReconcilePlan(deployment, Invalid(str(error)))
    engine = snapshot.child("Deployment", names.Children(deployment.name).engine)
    load = model_load(Context(deployment, 0, None, images=images), snapshot, now)
    loaded = load.report if load is not None else None
    try:
        judged = verdict_for(deployment, engine, snapshot, key_id, loaded)
    except InvalidPatch as error:
        return ReconcilePlan(deployment, Invalid(f"spec.{error}"))
    verdict = judged.verdict
    if isinstance(verdict, Invalid | DoesNotFit | NotServed) or deployment.spec.mode == "Plan":
        # The report is kept all the same: its pod may be gone when there is a plan that fits.
        found = load.apply if load is not None and loaded is not None else None
        noted = (Apply(found, Change.RECORDED),) if found is not None else ()
        return ReconcilePlan(deployment, verdict, applies=noted, plan_differs=judged.differs)
    asked = snapshot.child("ConfigMap", names.Children(deployment.name).wake)
    old = deployment.status.scaling if deployment.status is not None else None
    scaling = scaling_status(deployment, old, engine, wake_text(asked), snapshot.decided, now)
    replicas = scaling.desired if scaling is not None else deployment.spec.replicas
    force = in_force(deployment, judged, engine, snapshot.measured, now, tunable=bool(key_id))
    verdict, differs = force.verdict, "; ".join(filter(None, (judged.differs, force.differs))) or None
    plan = verdict.plan if isinstance(verdict, Fits) else None
    context = Context(
        deployment, replicas, plan, key_id,
        planned_for=judged.annotation, chosen_for=force.annotation,
        images=images, scrapers=scrapers, operator=operator, loaded=loaded,
    )  # fmt: skip
    gateway = snapshot.child("Deployment", context.children.gateway)
    key = engine_key(deployment.spec.gateway.auth is not None, engine, gateway, snapshot.pods)
    context = replace(context, key_shown=key.shown, key_asked=key.asked)
    tuned = None
    last = snapshot.child("ConfigMap", context.children.last_ready)
    kept_revision = revision_in(last)
    # Engines of a model that is not there yet are not made; those that serve another one go on.
    loading = load if loaded is None else None
    try:
        revision = engine_revision(context)
        choice = Choice(kept_revision) if loading is not None else choose_revision(
            revision, kept_revision, engine, snapshot.pods,
            attempts=snapshot.attempts, paused=deployment.spec.rollout.pause, now=now,
        )  # fmt: skip
        revision = choice.instead or revision
        in_place = replaced_in_place(engine, snapshot.pods, revision.label, deployment.spec.rollout, now)
        context = replace(
            context,
            revision=revision,
            failed=choice.failed.annotation() if choice.failed else None,
            in_place=in_place.now,
        )
        if key_id:
            config = snapshot.child("ConfigMap", context.children.engine)
            tuned = tuning(revision.document, config, engine, now)
            context = replace(context, tuned=tuned.annotation())
        wanted = render(context)
        if later := _later(context) if loading is not None and choice.instead is None else set[Ref]():
            wanted = [manifest for manifest in wanted if ref(manifest) not in later]
    except InvalidPatch as error:
        return ReconcilePlan(deployment, Invalid(f"spec.{error}"))
    not_served = [snapshot.not_served[one["kind"]] for one in wanted if one["kind"] in snapshot.not_served]
    wanted = [manifest for manifest in wanted if manifest["kind"] not in snapshot.not_served]
    cache_kept = _cache_kept(wanted, snapshot)
    as_wanted: dict[str, str] = {}
    applies = [
        apply
        for manifest in wanted
        if not (cache_kept and manifest["kind"] == CLAIM.kind)
        and (apply := _compare(manifest, snapshot, as_wanted)) is not None
    ]
    waiting = any(map(is_being_created, snapshot.pods))
    if not later and (waiting or engine is None or _mounts_another(engine, context.admin_secret)):
        # Before everything else: pods that mount it wait for it with a warning. It is not read: whether it is
        # there is asked by making it, and only where somebody may wait for it.
        applies.insert(0, Apply(admin_secret(context, new_token()), Change.MISSING, create_only=True))
    without_key = key.shown and any(map(waits_for_mounts, snapshot.pods))
    if without_key or (key.shown and not has_key(gateway)):
        applies.insert(0, Apply(engine_key_secret(context, new_token()), Change.MISSING, create_only=True))
    keep = {ref(manifest) for manifest in wanted} | later
    if load is not None:
        keep |= load.keep
        if load.apply is not None:
            applies.append(Apply(load.apply, Change.MISSING if loading is not None else Change.RECORDED))
    record = sealed(last_ready(context))
    changing = any(ref(one.manifest) == Ref("Deployment", context.children.engine) for one in applies)
    if choice.instead is None and not (changing or later) and is_ready(engine, revision.label):
        if _compare(record, snapshot, as_wanted) is not None:
            applies.append(Apply(record, Change.RECORDED))
        ready_revision: str | None = revision.label
    else:
        ready_revision = kept_revision.label if kept_revision is not None else None
    if last is not None:
        keep.add(ref(record))
    tunes = to_tell(snapshot.pods, tuned, revision.label, snapshot.told) if tuned is not None else ()
    trouble = index_trouble(deployment, asked, now)
    moments = [
        *([WAITING_PERIOD] if waiting or without_key or not_served else []),
        *([] if trouble is None else [trouble.seconds_left]),
        *([AGAIN] if tunes else []),
        *(one.again_in for one in (choice, in_place, load, force) if one and one.again_in is not None),
    ]
    return ReconcilePlan(
        deployment,
        with_report(verdict, deployment, snapshot.reported, revision.label),
        replicas,
        tuple(apply for apply in applies if not _is_terminating(ref(apply.manifest), snapshot)),
        _prune(snapshot, keep),
        tuple(not_served),
        tuple(sorted(one for one in keep if _is_terminating(one, snapshot))),
        min(moments, default=None),
        trouble,
        differs,
        tunes,
        ready_revision=ready_revision,
        failed=choice.failed,
        scaling=scaling,
        as_wanted=as_wanted,
        in_place=in_place.now,
        load=loading,
        key_waits=key.waits,
        cache_kept=cache_kept,
        workload=force.workload,
        announced=force.announced,
    )


def _later(context: Context) -> set[Ref]:
    """What engines are made of and with, which waits for their model."""
    return {Ref(kind, context.children.engine) for kind in ("Deployment", "ConfigMap")}


def _cache_kept(wanted: list[Manifest], snapshot: Snapshot) -> str | None:
    claims = [(one, snapshot.children.get(ref(one))) for one in wanted if one["kind"] == CLAIM.kind]
    return next((said for one, there in claims if there and (said := kept(one, there))), None)


def _compare(manifest: Manifest, snapshot: Snapshot, as_wanted: dict[str, str]) -> Apply | None:
    """What to do about one child; `as_wanted` gets it if that is nothing."""
    observed = snapshot.children.get(ref(manifest))
    if observed is None:
        return Apply(manifest, Change.MISSING)
    wanted = annotation(manifest, names.ANNOTATION_SPEC_HASH)
    if annotation(observed, names.ANNOTATION_SPEC_HASH) != wanted:
        return Apply(manifest, Change.OUTDATED)
    uid = str(metadata(observed).get("uid"))
    both = in_version(manifest, observed)
    if snapshot.as_wanted.get(uid) != both:
        fields = drift(manifest, observed)
        if fields and snapshot.settled.get(uid) != made_of(manifest, observed):
            return Apply(manifest, Change.DRIFTED, ", ".join(fields))
    as_wanted[uid] = both
    return None


def in_version(wanted: Manifest, observed: Manifest) -> str:
    """What `Snapshot.as_wanted` says of a child that is, in this version, what was wanted."""
    return f"{metadata(observed).get('resourceVersion')} {annotation(wanted, names.ANNOTATION_SPEC_HASH)}"


def _mounts_another(engine: Manifest, secret: str) -> bool:
    """Whether the pods have an admin token of another name, as those of an earlier operator do."""
    try:
        volumes = engine["spec"]["template"]["spec"]["volumes"]
        return any(each["name"] == "admin" and each["secret"]["secretName"] != secret for each in volumes)
    except (KeyError, TypeError):
        # Somebody's damage: it is repaired, and no reason to make a token.
        return False


def _is_terminating(one: Ref, snapshot: Snapshot) -> bool:
    child = snapshot.children.get(one)
    return child is not None and is_terminating(child)


def _prune(snapshot: Snapshot, keep: set[Ref]) -> tuple[Delete, ...]:
    return tuple(
        Delete(one, str(child["metadata"]["uid"]))
        for one, child in sorted(snapshot.children.items())
        # The volume with the downloaded weights outlives a change of mind; it goes with its owner.
        if one not in keep and not is_terminating(child) and one.kind != CLAIM.kind
    )
