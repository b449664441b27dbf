"""`engine_rollout`: decides the engines' revision, the steps to it, and the live settings to send. Pure.

Called by `plan`, after the number of engines and their memory plan were decided. `ready_record` then records
the last revision of which all engines were ready in a ConfigMap: engines return to it if a later revision
fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from mamba_api import names
from mamba_api.choices import Role
from mamba_operator.children.candidate_rollout import CanaryPass, canary_choice, has_candidate
from mamba_operator.children.child_comparison import Apply, Change, ChildComparison, compare_children
from mamba_operator.objects.manifest import Ref, annotation, label_of, ref, sealed
from mamba_operator.objects.pod_trouble import is_engine, role_of
from mamba_operator.objects.recorded_status import workload_state
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context, EngineRevision
from mamba_operator.render.engine import engine_revision, last_ready, revision_in
from mamba_operator.render.live_settings import LiveSettings, SettingsUpdate, live_settings, pending_updates
from mamba_operator.rollout.adapter_outcome import AdapterUpdate
from mamba_operator.rollout.adapter_rollout import AdapterRollout, adapter_rollout
from mamba_operator.rollout.in_place_rollout import InPlaceRollout, in_place_rollout, without_room_since
from mamba_operator.rollout.rollback import RevisionChoice, choose_revision, is_ready

QUEUE_POLL_SECONDS = 10.0
"""Seconds until a queued roll-out checks again whether other roll-outs have ended."""


@dataclass(frozen=True, slots=True)
class EngineRollout:
    """The revision that the engines of one role run, and the steps to it."""

    context: Context
    """The context that was passed in, with the revision and the steps filled in."""
    revision: EngineRevision
    choice: RevisionChoice
    in_place: InPlaceRollout
    settings_updates: tuple[SettingsUpdate, ...]
    """Live settings to send to running engines."""
    adapter_updates: tuple[AdapterUpdate, ...]
    """Running engines that may not serve the adapters of the spec yet."""
    last_ready: EngineRevision | None
    """Revision that is recorded as the last ready one; None = no revision is recorded."""
    later: frozenset[Ref]
    """Children of the engines that are created only after the model was downloaded; else empty."""
    begins_unasked: bool = False
    """Whether a roll-out begins although nobody has edited the object."""
    canary: CanaryPass | None = None
    """The canary under way; None = there is none."""


def engine_rollout(context: Context, snapshot: Snapshot, now: datetime, *, loading: bool) -> EngineRollout:
    """Decide which revision the engines of one role run, and how they get there.

    Args:
        context: everything that children depend on, without the revision.
        snapshot: observed objects.
        now: the time, with a time zone.
        loading: whether the model is being downloaded. No engines are created then, and engines that serve
            another model keep running.
    """
    rollout = context.deployment.spec.rollout
    engine = snapshot.child("Deployment", context.children.engine)
    recorded = revision_in(snapshot.child("ConfigMap", context.children.last_ready))
    revision = engine_revision(context)
    choice = RevisionChoice(recorded) if loading else choose_revision(
        revision, recorded, engine, snapshot.pods,
        attempts=snapshot.attempts, times=snapshot.engine_times, paused=rollout.pause, now=now,
    )  # fmt: skip
    choice, begins = _in_turn(context, snapshot, choice, recorded, revision, loading=loading)
    canary = None
    if rollout.canary is not None:
        choice, canary = canary_choice(rollout.canary, context, snapshot, choice, revision, recorded, now)
    adapters = _adapters(context, snapshot, choice.instead or revision, now, loading=loading)
    revision = adapters.revision
    in_place = InPlaceRollout() if engine is None else in_place_rollout(
        engine, snapshot.pods, revision.label, rollout, context.replicas,
        snapshot.engine_times.still_since, now, back=choice.failed is not None,
    )  # fmt: skip
    tuned = _tuned(context, snapshot, revision, now)
    return EngineRollout(
        replace(
            context,
            revision=revision,
            failed=choice.failed.annotation() if choice.failed else None,
            in_place=in_place.now,
            missing=in_place.missing,
            retry=in_place.retry,
            tuned=tuned.annotation() if tuned is not None else None,
            adapters=adapters.annotation if context.key_id else None,
            candidate=canary.candidate() if canary is not None else None,
        ),
        revision,
        choice,
        in_place,
        pending_updates(snapshot.pods, tuned, revision.label, snapshot.sent_settings)
        if tuned is not None
        else (),
        adapters.updates,
        recorded,
        _engine_refs(context) if loading and choice.instead is None else frozenset(),
        begins,
        canary,
    )


def _in_turn(
    context: Context,
    snapshot: Snapshot,
    choice: RevisionChoice,
    ready: EngineRevision | None,
    desired: EngineRevision,
    *,
    loading: bool,
) -> tuple[RevisionChoice, bool]:
    """Return the choice, or the `ready` revision if the roll-out has to wait for other roll-outs.

    The second value says whether a roll-out begins although nobody has edited the object. `desired` is the
    revision of the spec, and `loading` says that its model is being downloaded, so that nothing begins.
    """
    if loading or choice.instead is not None or not _begins_unasked(context, snapshot, ready, desired):
        return choice, False
    if has_candidate(context, snapshot, desired):
        return choice, False
    if snapshot.may_begin:
        return choice, True
    return RevisionChoice(ready, requeue_after=QUEUE_POLL_SECONDS, queued=True), False


def _begins_unasked(
    context: Context, snapshot: Snapshot, ready: EngineRevision | None, desired: EngineRevision
) -> bool:
    """Return whether ready engines would be replaced although their object was not edited.

    A newer operator or other default images cause that, for example.
    """
    engine = snapshot.child("Deployment", context.children.engine)
    if engine is None or ready is None or not label_of(engine) == ready.label != desired.label:
        return False
    meta, status = context.deployment.metadata, context.deployment.status
    same = status is not None and status.observed_generation == meta.generation
    return same and _restart_mark(ready) == _restart_mark(desired)


def _restart_mark(revision: EngineRevision) -> str | None:
    return annotation(revision.template, names.ANNOTATION_RESTART)


def _tuned(
    context: Context, snapshot: Snapshot, revision: EngineRevision, now: datetime
) -> LiveSettings | None:
    """Return the live settings of running engines; None where the operator cannot send them."""
    if not context.key_id:
        return None
    engine = snapshot.child("Deployment", context.children.engine)
    return live_settings(revision.document, snapshot.child("ConfigMap", context.children.engine), engine, now)


def _adapters(
    context: Context, snapshot: Snapshot, revision: EngineRevision, now: datetime, *, loading: bool
) -> AdapterRollout:
    """Return the decision about the adapters of running engines, if the operator can reach the engines.

    While files are downloaded (`loading`), engines keep the adapters that they serve.
    """
    if not context.key_id:
        return AdapterRollout(revision, (), "")
    return adapter_rollout(
        revision,
        snapshot.child("ConfigMap", context.children.engine),
        snapshot.child("Deployment", context.children.engine),
        () if loading else snapshot.pods,
        snapshot.adapter_outcomes,
        now,
    )


def _engine_refs(context: Context) -> frozenset[Ref]:
    return frozenset(Ref(kind, context.children.engine) for kind in ("Deployment", "ConfigMap"))


def engine_refs(children: names.Children) -> frozenset[Ref]:
    """Return the children that only the engines of one role have."""
    return frozenset(
        (
            Ref("Deployment", children.engine),
            Ref("ConfigMap", children.engine),
            Ref("ConfigMap", children.last_ready),
        )
    )


def outgoing_roles(snapshot: Snapshot, engines: Sequence[EngineRollout], now: datetime) -> tuple[Role, ...]:
    """Return the roles that are no longer in the spec, and whose engines must keep running for now.

    After a change between unified engines and two pools, the old engines serve until all new ones are ready.
    They end earlier if a new engine has waited for the room that they occupy for `rollout.inPlaceAfter`.
    """
    roles = {part.context.role for part in engines}
    others = tuple(role for role in snapshot.roles if role not in roles)
    if not others or all(_serves(part, snapshot) for part in engines):
        return ()
    return () if _lacks_room(snapshot, engines, now) else others


def _serves(part: EngineRollout, snapshot: Snapshot) -> bool:
    """Return whether all engines of the role of `part` have its revision and are ready."""
    own = snapshot.of_pool(part.context.role)
    return is_ready(own.engine, part.revision.label, own.pods) and (
        workload_state(own.engine).ready >= part.context.replicas
    )


def _lacks_room(snapshot: Snapshot, engines: Sequence[EngineRollout], now: datetime) -> bool:
    """Return whether a new engine has waited for room for `rollout.inPlaceAfter`."""
    patience = engines[0].context.deployment.spec.rollout.in_place_wait
    roles = {part.context.role for part in engines}
    if patience is None:
        return False
    waiting = (
        since
        for pod in snapshot.pods
        if is_engine(pod) and role_of(pod) in roles and (since := without_room_since(pod)) is not None
    )
    return any((now - since).total_seconds() >= patience.seconds for since in waiting)


@dataclass(frozen=True, slots=True)
class ReadyRecord:
    """The revision that was ready last, and the write that records it."""

    revision: str | None
    """Label of the engine pods; None = no revision has been ready yet."""
    applies: tuple[Apply, ...] = ()
    """Write of the record, if the record has another revision."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date` for the record, if it is up to date."""


def ready_record(engines: EngineRollout, snapshot: Snapshot, compared: ChildComparison) -> ReadyRecord:
    """Decide which revision was last ready. `compared` are the changes of this pass.

    Engines that the pass changes are not ready yet.
    """
    if not _is_ready_now(engines, snapshot, compared):
        last = engines.last_ready
        return ReadyRecord(last.label if last is not None else None)
    record = sealed(last_ready(engines.context))
    comparison = compare_children([record], snapshot)
    applies = (Apply(record, Change.RECORDED),) if comparison.applies else ()
    return ReadyRecord(engines.revision.label, applies, comparison.up_to_date)


def _is_ready_now(engines: EngineRollout, snapshot: Snapshot, compared: ChildComparison) -> bool:
    """Return whether all engines run the spec's own revision and are ready, and no change is due."""
    deployment = Ref("Deployment", engines.context.children.engine)
    changing = any(ref(apply.manifest) == deployment for apply in compared.applies)
    waits = changing or engines.adapter_updates or engines.later or engines.choice.instead is not None
    return not waits and is_ready(snapshot.children.get(deployment), engines.revision.label, snapshot.pods)
