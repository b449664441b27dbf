"""`make_plan`: from a snapshot to what has to change, each change with its reason. Pure.

The heart of the operator: called by `reconcile` for every wake, whatever the event was. It decides and
touches nothing; `apply` carries it out and `status` tells what came of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import ValidationError

from mamba_api import names
from mamba_api.errors import ContractError
from mamba_api.v1alpha1 import MambaDeployment, ScalingStatus
from mamba_api.v1alpha1.documents import explain
from mamba_api.v1alpha1.profiles import Profiles, with_profile
from mamba_operator.autoscale.scale import scaling_status, wake_text
from mamba_operator.changes import Apply, Change
from mamba_operator.chosen_for import InForce, in_force
from mamba_operator.comparison import compare, not_needed, terminates
from mamba_operator.engines import Engines, engines_of
from mamba_operator.index_trouble import IndexTrouble, index_trouble
from mamba_operator.model_load import ModelLoad, model_load
from mamba_operator.mounted_secrets import pods_wait, secrets_to_make
from mamba_operator.objects.errors import InvalidPatch
from mamba_operator.objects.manifest import Manifest, Ref, is_terminating, ref
from mamba_operator.objects.record import readable
from mamba_operator.planned_for import Judged, verdict_for
from mamba_operator.ready_record import ready_record
from mamba_operator.reconcile_plan import ReconcilePlan
from mamba_operator.render import render
from mamba_operator.render.context import Context
from mamba_operator.render.default_images import OF_THIS_VERSION, DefaultImages
from mamba_operator.render.scrapers import OPERATOR, PROMETHEUS, Scraper
from mamba_operator.render.tuning import AGAIN
from mamba_operator.reported_plan import with_report
from mamba_operator.rollout.engine_key import EngineKey, engine_key
from mamba_operator.snapshot import Snapshot
from mamba_operator.verdict import DoesNotFit, Fits, Invalid, NotServed
from mamba_planner.shipped_profiles import SHIPPED

WAITING_PERIOD = 30.0
"""Seconds to the next look while pods wait for what they mount, or for a kind: nothing tells when a Secret
goes or a CRD comes."""


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
    deployment = _read(snapshot.owner, profiles)
    if isinstance(deployment, ReconcilePlan):
        return deployment
    engine = snapshot.child("Deployment", names.Children(deployment.name).engine)
    load = model_load(Context(deployment, 0, None, images=images), snapshot, now)
    loaded = load.report if load is not None else None
    try:
        judged = verdict_for(deployment, engine, snapshot, key_id, loaded)
        if isinstance(judged.verdict, Invalid | DoesNotFit | NotServed) or deployment.spec.mode == "Plan":
            return _shown(deployment, judged, load)
        context = Context(
            deployment, 0, None, key_id,
            images=images, scrapers=scrapers, operator=operator, loaded=loaded,
        )  # fmt: skip
        return _carried_out(context, snapshot, judged, load, now, new_token)
    except InvalidPatch as error:
        return ReconcilePlan(deployment, Invalid(f"spec.{error}"))


def _read(owner: Manifest, profiles: Profiles) -> MambaDeployment | ReconcilePlan:
    """The object with its profile filled in; the plan to leave all as it is where it breaks the contract."""
    try:
        deployment = MambaDeployment.model_validate(readable(owner), by_alias=True, by_name=False)
    except ValidationError as error:
        return ReconcilePlan(verdict=Invalid("; ".join(explain(error))))
    try:
        return with_profile(deployment, profiles)
    except ContractError as error:
        return ReconcilePlan(deployment, Invalid(str(error)))


def _shown(deployment: MambaDeployment, judged: Judged, load: ModelLoad | None) -> ReconcilePlan:
    """The plan where it is only told what the planner says, and nothing that runs is changed."""
    # The report is kept all the same: its pod may be gone when there is a plan that fits.
    found = load.apply if load is not None and load.report is not None else None
    noted = (Apply(found, Change.RECORDED),) if found is not None else ()
    return ReconcilePlan(deployment, judged.verdict, applies=noted, plan_differs=judged.differs)


def _carried_out(
    context: Context,
    snapshot: Snapshot,
    judged: Judged,
    load: ModelLoad | None,
    now: datetime,
    new_token: Callable[[], str],
) -> ReconcilePlan:
    """The plan where children are to be as the object says; `context` has yet to get what is decided here.
    Raises InvalidPatch."""
    decisions = _decisions(context, snapshot, judged, now)
    loading = load if context.loaded is None else None
    engines = engines_of(_decided(context, decisions, judged), snapshot, now, loading=loading is not None)
    wanted, not_served = _wanted(engines, snapshot)
    compared = compare(wanted, snapshot)
    record = ready_record(engines, snapshot, compared)
    secrets = secrets_to_make(engines, snapshot, new_token)
    applies = (*secrets, *compared.applies, *_load_applies(load, loading), *record.applies)
    keep = _kept(engines, snapshot, wanted, load)
    trouble = index_trouble(context.deployment, _wake(context, snapshot), now)
    return ReconcilePlan(
        context.deployment,
        with_report(decisions.force.verdict, context.deployment, snapshot.reported, engines.revision.label),
        decisions.replicas,
        tuple(apply for apply in applies if not terminates(ref(apply.manifest), snapshot)),
        not_needed(snapshot, keep),
        not_served,
        tuple(sorted(one for one in keep if terminates(one, snapshot))),
        _again_in(engines, snapshot, load, decisions.force, trouble, not_served),
        trouble,
        plan_differs="; ".join(filter(None, (judged.differs, decisions.force.differs))) or None,
        tunes=engines.tunes,
        ready_revision=record.revision,
        failed=engines.choice.failed,
        scaling=decisions.scaling,
        as_wanted={**compared.as_wanted, **record.as_wanted},
        in_place=engines.in_place.now,
        load=loading,
        key_waits=decisions.key.waits,
        cache_kept=compared.cache_kept,
        workload=decisions.force.workload,
        announced=decisions.force.announced,
    )


@dataclass(frozen=True, slots=True)
class _Decisions:
    """What is decided about an object before its children are."""

    scaling: ScalingStatus | None
    replicas: int
    force: InForce
    key: EngineKey


def _decisions(context: Context, snapshot: Snapshot, judged: Judged, now: datetime) -> _Decisions:
    """How many engines, with which strategy, and who has the key between gateways and engines."""
    deployment = context.deployment
    engine = snapshot.child("Deployment", context.children.engine)
    gateway = snapshot.child("Deployment", context.children.gateway)
    old = deployment.status.scaling if deployment.status is not None else None
    woken = wake_text(_wake(context, snapshot))
    scaling = scaling_status(deployment, old, engine, woken, snapshot.decided, now)
    return _Decisions(
        scaling,
        scaling.desired if scaling is not None else deployment.spec.replicas,
        in_force(deployment, judged, engine, snapshot.measured, now, tunable=bool(context.key_id)),
        engine_key(deployment.spec.gateway.auth is not None, engine, gateway, snapshot.pods),
    )


def _wake(context: Context, snapshot: Snapshot) -> Manifest | None:
    """What gateways write to."""
    return snapshot.child("ConfigMap", context.children.wake)


def _decided(context: Context, decisions: _Decisions, judged: Judged) -> Context:
    """The context with the decisions."""
    verdict = decisions.force.verdict
    return replace(
        context,
        replicas=decisions.replicas,
        plan=verdict.plan if isinstance(verdict, Fits) else None,
        planned_for=judged.annotation,
        chosen_for=decisions.force.annotation,
        key_shown=decisions.key.shown,
        key_asked=decisions.key.asked,
    )


def _wanted(engines: Engines, snapshot: Snapshot) -> tuple[list[Manifest], tuple[str, ...]]:
    """The children, and why those are missing that this cluster cannot have. Raises InvalidPatch."""
    absent = snapshot.not_served
    children = [one for one in render(engines.context) if ref(one) not in engines.later]
    not_served = tuple(absent[one["kind"]] for one in children if one["kind"] in absent)
    return [one for one in children if one["kind"] not in absent], not_served


def _load_applies(load: ModelLoad | None, loading: ModelLoad | None) -> list[Apply]:
    """The loader's Job, or the record of what it downloaded."""
    if load is None or load.apply is None:
        return []
    return [Apply(load.apply, Change.MISSING if loading is not None else Change.RECORDED)]


def _kept(
    engines: Engines, snapshot: Snapshot, wanted: Iterable[Manifest], load: ModelLoad | None
) -> set[Ref]:
    """The children that stay."""
    record = Ref("ConfigMap", engines.context.children.last_ready)
    keep = {*map(ref, wanted), *engines.later, *(load.keep if load is not None else ())}
    return keep | ({record} if record in snapshot.children else set())


def _again_in(
    engines: Engines,
    snapshot: Snapshot,
    load: ModelLoad | None,
    force: InForce,
    trouble: IndexTrouble | None,
    not_served: Sequence[str],
) -> float | None:
    """Seconds until time alone changes the plan; None where it does not."""
    moments = (
        WAITING_PERIOD if pods_wait(snapshot) or not_served else None,
        trouble.seconds_left if trouble is not None else None,
        AGAIN if engines.tunes else None,
        engines.choice.again_in,
        engines.in_place.again_in,
        load.again_in if load is not None else None,
        force.again_in,
    )
    return min((one for one in moments if one is not None), default=None)
