"""`make_plan`: decides from a snapshot what has to change, each change with its reason. Pure.

Called by `reconcile` in every pass, whatever event caused it. `apply` carries the reconcile plan out, and
`conditions.status` reports the result.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from pydantic import ValidationError

from mamba_api import names
from mamba_api.choices import Role
from mamba_api.errors import ContractError
from mamba_api.v1alpha1 import MambaDeployment, ScalingStatus
from mamba_api.v1alpha1.documents import explain
from mamba_api.v1alpha1.profiles import Profiles, profiled_pools, with_profile
from mamba_operator.autoscale.scaling_status import recorded_scaling, scaling_status, wake_text
from mamba_operator.children.child_comparison import (
    Apply,
    Change,
    compare_children,
    is_being_deleted,
    unneeded_children,
)
from mamba_operator.children.engine_rollout import (
    EngineRollout,
    ReadyRecord,
    engine_refs,
    engine_rollout,
    outgoing_roles,
    ready_record,
)
from mamba_operator.children.mounted_secrets import KeyRollout, key_rollout, pods_wait, secrets_to_make
from mamba_operator.decision.reconcile_plan import IndexTrouble, ReconcilePlan
from mamba_operator.memory.in_force import StrategyInForce, strategy_in_force
from mamba_operator.memory.pin import PinnedVerdict, pinned_pools
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
from mamba_planner.cards.shipped_profiles import SHIPPED
from mamba_planner.hand_over import hand_over_tokens

REPORT_SECONDS = 90.0
"""Seconds for which a gateway's report is valid. Gateways repeat a report three times within that time."""
MAX_REPORT_CHARS = 400
"""Maximum number of characters of a gateway's report that are shown."""
OUTGOING_POLL_SECONDS = 10.0
"""Seconds until the next pass while engines of former roles wait for engines of the spec's roles."""
WAITING_PERIOD = 30.0
"""Seconds until the next pass while pods wait for a Secret, or children for a CRD. No watch reports that a
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
        snapshot: observed objects.
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
    try:
        pools = profiled_pools(deployment, profiles)
        snapshots = {role: snapshot.of_pool(role) for role in pools}
        # Where the loader runs depends on the engines' placement, which pools share unless profiles differ.
        load = (
            model_load(Context(next(iter(pools.values())), 0, None, images=images), snapshot, now)
            if deployment.spec.model.has_download_job
            else None
        )
        loaded = load.report if load is not None else None
        pinned = pinned_pools(pools, snapshots, key_id, loaded)
        if deployment.spec.mode == "Plan" or any(map(_blocks, pinned.values())):
            return _report_plan(deployment, pools, pinned, load, snapshot)
        passes = [
            _decide(
                Context(
                    pool, 0, None, key_id,
                    images=images, scrapers=scrapers, operator=operator, loaded=loaded, role=role,
                    hand_over_tokens=hand_over_tokens(deployment), transport=deployment.transport,
                ),
                snapshots[role], pinned[role], load, now,
            )
            for role, pool in pools.items()
        ]  # fmt: skip
        return _rollout_plan(deployment, snapshot, passes, load, now, new_token)
    except InvalidPatch as error:
        return ReconcilePlan(deployment, SpecInvalid(f"spec.{error}"))


def _blocks(pinned: PinnedVerdict) -> bool:
    """Return whether the verdict keeps the pass from changing anything."""
    return isinstance(pinned.verdict, SpecInvalid | DoesNotFit | ModelNotServed)


def _read(owner: Manifest, profiles: Profiles) -> MambaDeployment | ReconcilePlan:
    """Return the object with its profile filled in; for an invalid object, a plan that changes nothing."""
    try:
        deployment = MambaDeployment.model_validate(with_readable_status(owner), by_alias=True, by_name=False)
    except ValidationError as error:
        return ReconcilePlan(verdict=SpecInvalid("; ".join(explain(error))))
    try:
        return with_profile(deployment, profiles)
    except ContractError as error:
        return ReconcilePlan(deployment, SpecInvalid(str(error)))


def _report_plan(
    deployment: MambaDeployment,
    pools: Mapping[Role, MambaDeployment],
    pinned: Mapping[Role, PinnedVerdict],
    load: ModelLoad | None,
    snapshot: Snapshot,
) -> ReconcilePlan:
    """Return a plan that shows the planner's verdicts and changes no running pod.

    `pools` are the deployments by role, and `load` is the state of the model's download, whose report is
    recorded.
    """
    # The loader's report is recorded nevertheless: its pod may be gone once a plan fits.
    record = load.apply if load is not None and load.report is not None else None
    applies = (Apply(record, Change.RECORDED),) if record is not None else ()
    parts = {
        role: ReconcilePlan(pool, pinned[role].verdict, plan_difference=pinned[role].difference)
        for role, pool in pools.items()
    }
    # A verdict that blocks one pool blocks both, because neither serves without the other.
    whole = next((part for role, part in parts.items() if _blocks(pinned[role])), list(parts.values())[-1])
    return replace(
        whole,
        deployment=_whole(deployment, pools),
        applies=applies,
        pools=_of_pools(parts),
        outgoing=tuple(role for role in snapshot.roles if role not in pools),
    )


def _whole(deployment: MambaDeployment, pools: Mapping[Role, MambaDeployment]) -> MambaDeployment:
    """Return the object with its profile filled in; with two pools, each pool has its own."""
    return pools.get("unified", deployment)


def _of_pools(parts: Mapping[Role, ReconcilePlan]) -> Mapping[Role, ReconcilePlan]:
    return {} if "unified" in parts else parts


@dataclass(frozen=True, slots=True)
class _PoolPass:
    """Decisions of one pass about the engines of one role."""

    snapshot: Snapshot
    pinned: PinnedVerdict
    decisions: "_Decisions"
    engines: EngineRollout

    @property
    def role(self) -> Role:
        return self.snapshot.role


def _decide(
    context: Context, snapshot: Snapshot, pinned: PinnedVerdict, load: ModelLoad | None, now: datetime
) -> _PoolPass:
    """Decide about the engines of one role. The decisions are added to `context`.

    `snapshot` has the engines of the role alone, `pinned` is the planner's verdict, and `load` the state of
    the model's download.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    decisions = _decisions(context, snapshot, pinned, now)
    loading = load is not None and context.loaded is None
    engines = engine_rollout(_with_decisions(context, decisions, pinned), snapshot, now, loading=loading)
    return _PoolPass(snapshot, pinned, decisions, engines)


def _rollout_plan(
    deployment: MambaDeployment,
    snapshot: Snapshot,
    passes: Sequence[_PoolPass],
    load: ModelLoad | None,
    now: datetime,
    new_token: Callable[[], str],
) -> ReconcilePlan:
    """Return the plan that makes the children match the object.

    `passes` are the decisions about the engines of each role, and `load` is the state of the model's
    download.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    context = passes[0].engines.context
    loading = load if context.loaded is None else None
    children, not_served = _children([part.engines for part in passes], snapshot)
    compared = compare_children(children, snapshot)
    records = [ready_record(part.engines, part.snapshot, compared) for part in passes]
    applies = (
        *_secrets(passes, new_token),
        *compared.applies,
        *_load_applies(load, loading),
        *chain.from_iterable(record.applies for record in records),
    )
    outgoing = outgoing_roles(snapshot, [part.engines for part in passes], now)
    keep = _retained(passes, outgoing, snapshot, children, load)
    trouble = index_trouble(context.deployment, _wake(context, snapshot), now)
    parts = [_part_plan(part, record, loading) for part, record in zip(passes, records, strict=True)]
    delays = [_requeue_after(part, load, trouble, not_served) for part in passes]
    delays += [OUTGOING_POLL_SECONDS] if outgoing else []
    return replace(
        _joined(deployment, passes, parts),
        applies=tuple(apply for apply in applies if not is_being_deleted(ref(apply.manifest), snapshot)),
        deletes=unneeded_children(snapshot, keep),
        not_served=not_served,
        terminating=tuple(sorted(child for child in keep if is_being_deleted(child, snapshot))),
        requeue_after=min((seconds for seconds in delays if seconds is not None), default=None),
        index_trouble=trouble,
        up_to_date=dict(ChainMap(compared.up_to_date, *(dict(record.up_to_date) for record in records))),
        cache_kept=compared.cache_kept,
        outgoing=outgoing,
    )


def _joined(
    deployment: MambaDeployment, passes: Sequence[_PoolPass], parts: Sequence[ReconcilePlan]
) -> ReconcilePlan:
    """Return the decisions about the engines of all roles as one plan."""
    if len(parts) == 1:
        return replace(parts[0], begins_unasked=passes[0].engines.begins_unasked)
    return replace(
        # Where only one verdict can be shown for two pools, it is that of the decode pool.
        parts[-1],
        deployment=deployment,
        replicas=sum(part.decisions.replicas for part in passes),
        settings_updates=tuple(update for part in parts for update in part.settings_updates),
        adapter_updates=tuple(update for part in parts for update in part.adapter_updates),
        begins_unasked=any(part.engines.begins_unasked for part in passes),
        pools={part.role: plan for part, plan in zip(passes, parts, strict=True)},
    )


def _secrets(passes: Sequence[_PoolPass], new_token: Callable[[], str]) -> Iterable[Apply]:
    """Return the Secrets to create, each once, as the pods of both pools mount the same Secrets."""
    secrets: dict[Ref, Apply] = {}
    for part in passes:
        for secret in secrets_to_make(part.engines, part.snapshot, new_token):
            secrets.setdefault(ref(secret.manifest), secret)
    return secrets.values()


def _part_plan(part: _PoolPass, record: ReadyRecord, loading: ModelLoad | None) -> ReconcilePlan:
    """Return the decisions about the engines of one role, without the changes of children."""
    engines, decisions = part.engines, part.decisions
    deployment = engines.context.deployment
    return ReconcilePlan(
        deployment,
        with_report(
            decisions.in_force.verdict, deployment, part.snapshot.reported, engines.revision.label, part.role
        ),
        decisions.replicas,
        plan_difference="; ".join(filter(None, (part.pinned.difference, decisions.in_force.difference)))
        or None,
        settings_updates=engines.settings_updates,
        adapter_updates=engines.adapter_updates,
        ready_revision=record.revision,
        failed=engines.choice.failed,
        canary=engines.canary.status() if engines.canary is not None else None,
        scaling=decisions.scaling,
        in_place=engines.in_place.now,
        in_place_soon=engines.in_place.waits,
        in_place_refused=engines.in_place.refused,
        queued=engines.choice.queued,
        load=loading,
        key_blocked=decisions.key.blocked,
        workload=decisions.in_force.workload,
        announcement=decisions.in_force.announcement,
    )


@dataclass(frozen=True, slots=True)
class _Decisions:
    """Decisions about an object that have to be made before its children are rendered."""

    scaling: ScalingStatus | None
    replicas: int
    in_force: StrategyInForce
    key: KeyRollout


def _decisions(context: Context, snapshot: Snapshot, pinned: PinnedVerdict, now: datetime) -> _Decisions:
    """Decide the number of engines, their strategy, and whether engines require the gateways' key."""
    deployment = context.deployment
    engine = snapshot.engine
    gateway = snapshot.child("Deployment", context.children.gateway)
    role, wake = context.role, wake_text(_wake(context, snapshot))
    scaling = scaling_status(
        deployment, recorded_scaling(deployment.status, role), engine, wake, snapshot.latest_decision, now,
        role=role,
    )  # fmt: skip
    return _Decisions(
        scaling,
        scaling.desired if scaling is not None else deployment.spec.replicas,
        strategy_in_force(
            deployment, pinned, engine, snapshot.measured, now, tunable=bool(context.key_id), role=role
        ),
        key_rollout(deployment.spec.gateway.auth is not None, engine, gateway, snapshot.pods),
    )


def _wake(context: Context, snapshot: Snapshot) -> Manifest | None:
    """Return the ConfigMap into which gateways write texts for the operator; None if it does not exist."""
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


def _children(engines: Sequence[EngineRollout], snapshot: Snapshot) -> tuple[list[Manifest], tuple[str, ...]]:
    """Return the rendered children that this cluster can have, and the reasons why others cannot exist.

    Children that are created only after the model's download are in neither.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    absent = snapshot.not_served
    later = {child for part in engines for child in part.later}
    children = [child for child in render(*(part.context for part in engines)) if ref(child) not in later]
    not_served = tuple(absent[child["kind"]] for child in children if child["kind"] in absent)
    return [child for child in children if child["kind"] not in absent], not_served


def _load_applies(load: ModelLoad | None, loading: ModelLoad | None) -> list[Apply]:
    """Return the write of the loader's Job, or of the record of its download, if one is due."""
    if load is None or load.apply is None:
        return []
    return [Apply(load.apply, Change.MISSING if loading is not None else Change.RECORDED)]


def _retained(
    passes: Sequence[_PoolPass],
    outgoing: Iterable[Role],
    snapshot: Snapshot,
    children: Iterable[Manifest],
    load: ModelLoad | None,
) -> set[Ref]:
    """Return the children that must not be deleted.

    They are the rendered `children`, the engines of `outgoing` roles, the records of ready revisions, and the
    objects that a download needs.
    """
    later = {child for part in passes for child in part.engines.later}
    kept = {*map(ref, children), *later, *(load.keep if load is not None else ())}
    records = {Ref("ConfigMap", part.engines.context.children.last_ready) for part in passes}
    owner = snapshot.key.name
    others = {child for role in outgoing for child in engine_refs(names.Children(owner, role))}
    return kept | ((records | others) & snapshot.children.keys())


def _requeue_after(
    part: _PoolPass, load: ModelLoad | None, trouble: IndexTrouble | None, not_served: Sequence[str]
) -> float | None:
    """Return the seconds until the plan of one pool changes by time alone; None if it does not."""
    engines = part.engines
    delays = (
        WAITING_PERIOD if pods_wait(part.snapshot) or not_served else None,
        trouble.seconds_left if trouble is not None else None,
        AGAIN if engines.settings_updates or engines.adapter_updates else None,
        engines.choice.requeue_after,
        engines.in_place.requeue_after,
        load.requeue_after if load is not None else None,
        part.decisions.in_force.requeue_after,
    )
    return min((seconds for seconds in delays if seconds is not None), default=None)


def index_trouble(
    deployment: MambaDeployment | None, report: Manifest | None, now: datetime
) -> IndexTrouble | None:
    """Return the trouble with Redis that a gateway has reported; None without a recent, readable report.

    The result is also None if the spec names no Redis.
    """
    if deployment is None or deployment.spec.prefix_index.redis is None:
        return None
    data = report.get("data") if report else None
    text = data.get(names.INDEX_TROUBLE_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        return None
    timestamp, _, report_text = text.partition(" ")
    reported_at = parse_timestamp(timestamp)
    # The absolute difference is used, so that a clock that is ahead does not prolong a report.
    left = REPORT_SECONDS - abs((now - reported_at).total_seconds()) if reported_at is not None else 0.0
    # Strangers can reach a gateway, so its text is cut and made one printable line.
    line = "".join(char if char.isprintable() else " " for char in report_text[:MAX_REPORT_CHARS]).strip()
    if left <= 0 or not line:
        return None
    return IndexTrouble(
        f"{line}; requests are answered without the prefix index: check spec.prefixIndex.redis", left
    )
