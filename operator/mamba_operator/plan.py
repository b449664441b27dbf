"""`make_plan`: decides from a snapshot what has to change, each change with its reason. Pure.

Called by `reconcile` in every pass, whatever event caused it. `apply` carries the reconcile plan out, and
`conditions.status` reports the result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import ValidationError

from mamba_api import names
from mamba_api.errors import ContractError
from mamba_api.v1alpha1 import MambaDeployment, ScalingStatus
from mamba_api.v1alpha1.documents import explain
from mamba_api.v1alpha1.profiles import Profiles, with_profile
from mamba_operator.autoscale.scaling_status import scaling_status, wake_text
from mamba_operator.children.child_comparison import (
    Apply,
    Change,
    compare_children,
    is_being_deleted,
    unneeded_children,
)
from mamba_operator.children.engine_rollout import EngineRollout, engine_rollout, ready_record
from mamba_operator.children.mounted_secrets import KeyRollout, key_rollout, pods_wait, secrets_to_make
from mamba_operator.decision.reconcile_plan import IndexTrouble, ReconcilePlan
from mamba_operator.memory.in_force import StrategyInForce, strategy_in_force
from mamba_operator.memory.pin import PinnedVerdict, pinned_verdict
from mamba_operator.memory.verdict import DoesNotFit, Fits, ModelNotServed, SpecInvalid, with_report
from mamba_operator.model.model_load import ModelLoad, model_load
from mamba_operator.objects.errors import InvalidPatch
from mamba_operator.objects.manifest import Manifest, Ref, is_terminating, ref
from mamba_operator.objects.recorded_status import parse_timestamp, with_readable_status
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render import render
from mamba_operator.render.context import (
    OF_THIS_VERSION,
    OPERATOR,
    PROMETHEUS,
    Context,
    DefaultImages,
    Scraper,
)
from mamba_operator.render.live_settings import AGAIN
from mamba_planner.shipped_profiles import SHIPPED

REPORT_SECONDS = 90.0
"""Seconds for which a report counts; gateways repeat it three times in that time."""
MAX_REPORT_CHARS = 400
"""Characters of a report that are shown."""
WAITING_PERIOD = 30.0
"""Seconds until the next pass while pods wait for what they mount, or for a kind: no watch reports that a
Secret was deleted or a CRD installed."""


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
    """Decide what to do about one MambaDeployment.

    Args:
        snapshot: what was observed.
        now: the time, with a time zone.
        new_token: creates an admin token; called only when one may be needed.
        key_id: id of the key from which tokens are derived; empty = each token is random, and the operator
            cannot change settings of running engines.
        images: images of pods for which the object names none.
        scrapers: pods that may read the engines' metrics.
        operator: the operator's own pods.
        profiles: profiles that `spec.resources.profile` may name.
    """
    if snapshot.owner is None or is_terminating(snapshot.owner):
        # Owner references let the cluster collect the children; creating one now would race with that.
        return ReconcilePlan()
    deployment = _read(snapshot.owner, profiles)
    if isinstance(deployment, ReconcilePlan):
        return deployment
    engine = snapshot.child("Deployment", names.Children(deployment.name).engine)
    load = model_load(Context(deployment, 0, None, images=images), snapshot, now)
    loaded = load.report if load is not None else None
    try:
        pinned = pinned_verdict(deployment, engine, snapshot, key_id, loaded)
        if (
            isinstance(pinned.verdict, SpecInvalid | DoesNotFit | ModelNotServed)
            or deployment.spec.mode == "Plan"
        ):
            return _report_plan(deployment, pinned, load)
        context = Context(
            deployment, 0, None, key_id,
            images=images, scrapers=scrapers, operator=operator, loaded=loaded,
        )  # fmt: skip
        return _rollout_plan(context, snapshot, pinned, load, now, new_token)
    except InvalidPatch as error:
        return ReconcilePlan(deployment, SpecInvalid(f"spec.{error}"))


def _read(owner: Manifest, profiles: Profiles) -> MambaDeployment | ReconcilePlan:
    """Return the object with its profile filled in; a plan that changes nothing if it breaks the contract."""
    try:
        deployment = MambaDeployment.model_validate(with_readable_status(owner), by_alias=True, by_name=False)
    except ValidationError as error:
        return ReconcilePlan(verdict=SpecInvalid("; ".join(explain(error))))
    try:
        return with_profile(deployment, profiles)
    except ContractError as error:
        return ReconcilePlan(deployment, SpecInvalid(str(error)))


def _report_plan(deployment: MambaDeployment, pinned: PinnedVerdict, load: ModelLoad | None) -> ReconcilePlan:
    """Return the plan that reports the planner's verdict and changes no running pod."""
    # The loader's report is recorded nevertheless: its pod may be gone once a plan fits.
    record = load.apply if load is not None and load.report is not None else None
    applies = (Apply(record, Change.RECORDED),) if record is not None else ()
    return ReconcilePlan(deployment, pinned.verdict, applies=applies, plan_difference=pinned.difference)


def _rollout_plan(
    context: Context,
    snapshot: Snapshot,
    pinned: PinnedVerdict,
    load: ModelLoad | None,
    now: datetime,
    new_token: Callable[[], str],
) -> ReconcilePlan:
    """Return the plan that makes the children match the object; `context` does not hold its decisions yet.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    decisions = _decisions(context, snapshot, pinned, now)
    loading = load if context.loaded is None else None
    engines = engine_rollout(
        _with_decisions(context, decisions, pinned), snapshot, now, loading=loading is not None
    )
    children, not_served = _children(engines, snapshot)
    compared = compare_children(children, snapshot)
    record = ready_record(engines, snapshot, compared)
    secrets = secrets_to_make(engines, snapshot, new_token)
    applies = (*secrets, *compared.applies, *_load_applies(load, loading), *record.applies)
    keep = _retained(engines, snapshot, children, load)
    trouble = index_trouble(context.deployment, _wake(context, snapshot), now)
    return ReconcilePlan(
        context.deployment,
        with_report(
            decisions.in_force.verdict, context.deployment, snapshot.reported, engines.revision.label
        ),
        decisions.replicas,
        tuple(apply for apply in applies if not is_being_deleted(ref(apply.manifest), snapshot)),
        unneeded_children(snapshot, keep),
        not_served,
        tuple(sorted(child for child in keep if is_being_deleted(child, snapshot))),
        _requeue_after(engines, snapshot, load, decisions.in_force, trouble, not_served),
        trouble,
        plan_difference="; ".join(filter(None, (pinned.difference, decisions.in_force.difference))) or None,
        settings_updates=engines.settings_updates,
        ready_revision=record.revision,
        failed=engines.choice.failed,
        scaling=decisions.scaling,
        up_to_date={**compared.up_to_date, **record.up_to_date},
        in_place=engines.in_place.now,
        in_place_soon=engines.in_place.waits,
        in_place_refused=engines.in_place.refused,
        queued=engines.choice.queued,
        begins_unasked=engines.begins_unasked,
        load=loading,
        key_blocked=decisions.key.blocked,
        cache_kept=compared.cache_kept,
        workload=decisions.in_force.workload,
        announcement=decisions.in_force.announcement,
    )


@dataclass(frozen=True, slots=True)
class _Decisions:
    """Decisions about an object that precede those about its children."""

    scaling: ScalingStatus | None
    replicas: int
    in_force: StrategyInForce
    key: KeyRollout


def _decisions(context: Context, snapshot: Snapshot, pinned: PinnedVerdict, now: datetime) -> _Decisions:
    """Decide the number of engines, their strategy, and the state of the key that gateways show engines."""
    deployment = context.deployment
    engine = snapshot.child("Deployment", context.children.engine)
    gateway = snapshot.child("Deployment", context.children.gateway)
    old = deployment.status.scaling if deployment.status is not None else None
    wake = wake_text(_wake(context, snapshot))
    scaling = scaling_status(deployment, old, engine, wake, snapshot.latest_decision, now)
    return _Decisions(
        scaling,
        scaling.desired if scaling is not None else deployment.spec.replicas,
        strategy_in_force(deployment, pinned, engine, snapshot.measured, now, tunable=bool(context.key_id)),
        key_rollout(deployment.spec.gateway.auth is not None, engine, gateway, snapshot.pods),
    )


def _wake(context: Context, snapshot: Snapshot) -> Manifest | None:
    """Return the ConfigMap to which gateways write."""
    return snapshot.child("ConfigMap", context.children.wake)


def _with_decisions(context: Context, decisions: _Decisions, pinned: PinnedVerdict) -> Context:
    verdict = decisions.in_force.verdict
    return replace(
        context,
        replicas=decisions.replicas,
        plan=verdict.plan if isinstance(verdict, Fits) else None,
        planned_for=pinned.annotation,
        chosen_for=decisions.in_force.annotation,
        key_presented=decisions.key.presented,
        key_required=decisions.key.required,
    )


def _children(engines: EngineRollout, snapshot: Snapshot) -> tuple[list[Manifest], tuple[str, ...]]:
    """Render the children, and return with them why this cluster cannot have some of them.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    absent = snapshot.not_served
    children = [child for child in render(engines.context) if ref(child) not in engines.later]
    not_served = tuple(absent[child["kind"]] for child in children if child["kind"] in absent)
    return [child for child in children if child["kind"] not in absent], not_served


def _load_applies(load: ModelLoad | None, loading: ModelLoad | None) -> list[Apply]:
    """Return the loader's Job, or the record of its download, as a change to apply."""
    if load is None or load.apply is None:
        return []
    return [Apply(load.apply, Change.MISSING if loading is not None else Change.RECORDED)]


def _retained(
    engines: EngineRollout, snapshot: Snapshot, children: Iterable[Manifest], load: ModelLoad | None
) -> set[Ref]:
    """Return the children that must not be deleted."""
    record = Ref("ConfigMap", engines.context.children.last_ready)
    keep = {*map(ref, children), *engines.later, *(load.keep if load is not None else ())}
    return keep | ({record} if record in snapshot.children else set())


def _requeue_after(
    engines: EngineRollout,
    snapshot: Snapshot,
    load: ModelLoad | None,
    in_force: StrategyInForce,
    trouble: IndexTrouble | None,
    not_served: Sequence[str],
) -> float | None:
    """Return the seconds until time alone changes the plan; None where it does not."""
    delays = (
        WAITING_PERIOD if pods_wait(snapshot) or not_served else None,
        trouble.seconds_left if trouble is not None else None,
        AGAIN if engines.settings_updates else None,
        engines.choice.requeue_after,
        engines.in_place.requeue_after,
        load.requeue_after if load is not None else None,
        in_force.requeue_after,
    )
    return min((seconds for seconds in delays if seconds is not None), default=None)


def index_trouble(
    deployment: MambaDeployment | None, report: Manifest | None, now: datetime
) -> IndexTrouble | None:
    """Return the trouble that a gateway reported lately; None if none did, or the spec names no Redis."""
    if deployment is None or deployment.spec.prefix_index.redis is None:
        return None
    data = report.get("data") if report else None
    text = data.get(names.INDEX_TROUBLE_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        return None
    timestamp, _, report_text = text.partition(" ")
    reported_at = parse_timestamp(timestamp)
    # The distance in both directions: the clock of a gateway that is ahead does not prolong its report.
    left = REPORT_SECONDS - abs((now - reported_at).total_seconds()) if reported_at is not None else 0.0
    # Strangers can reach a gateway, so its text is cut and made one printable line.
    line = "".join(char if char.isprintable() else " " for char in report_text[:MAX_REPORT_CHARS]).strip()
    if left <= 0 or not line:
        return None
    return IndexTrouble(
        f"{line}; requests are answered without the prefix index: check spec.prefixIndex.redis", left
    )
