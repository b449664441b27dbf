"""`engine_rollout`: the revision that engines run, how they come to it, and who is told settings. Pure.

Called by `plan` once it is decided how many engines there are and what is planned for them.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from mamba_api import names
from mamba_operator.objects.manifest import Ref, annotation
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.engine import engine_revision
from mamba_operator.render.live_settings import LiveSettings, SettingsUpdate, live_settings, pending_updates
from mamba_operator.render.revision import EngineRevision, label_of, revision_in
from mamba_operator.rollout.in_place_rollout import InPlaceRollout, in_place_rollout
from mamba_operator.rollout.rollback import RevisionChoice, choose_revision

NEXT_TURN = 10.0
"""Seconds until it is looked again whether other roll-outs are over."""


@dataclass(frozen=True, slots=True)
class EngineRollout:
    """The revision that engines are to run, and what is to be done to get there."""

    context: Context
    """As it was given, with the revision and how it comes about filled in."""
    revision: EngineRevision
    choice: RevisionChoice
    in_place: InPlaceRollout
    settings_updates: tuple[SettingsUpdate, ...]
    """Those to be told settings that they take over while they serve."""
    last_ready: EngineRevision | None
    """The revision that is recorded as having been ready."""
    later: frozenset[Ref]
    """What engines are made of and with, where that waits for their model; empty otherwise."""
    begins_unasked: bool = False
    """Ready engines begin to be replaced, and nobody changed their object."""


def engine_rollout(context: Context, snapshot: Snapshot, now: datetime, *, loading: bool) -> EngineRollout:
    """What engines are to run now.

    Args:
        context: what children depend on, but for the revision.
        snapshot: what was observed.
        now: the time, with a time zone.
        loading: their model is not there yet: none are made, and those that serve another one go on.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    rollout = context.deployment.spec.rollout
    engine = snapshot.child("Deployment", context.children.engine)
    recorded = revision_in(snapshot.child("ConfigMap", context.children.last_ready))
    revision = engine_revision(context)
    choice = RevisionChoice(recorded) if loading else choose_revision(
        revision, recorded, engine, snapshot.pods,
        attempts=snapshot.attempts, times=snapshot.engine_times, paused=rollout.pause, now=now,
    )  # fmt: skip
    begins = not loading and choice.instead is None and _begins_unasked(context, snapshot, recorded, revision)
    if begins and not snapshot.may_begin:
        choice = RevisionChoice(recorded, requeue_after=NEXT_TURN, queued=True)
    revision = choice.instead or revision
    in_place = in_place_rollout(
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
        ),
        revision,
        choice,
        in_place,
        pending_updates(snapshot.pods, tuned, revision.label, snapshot.sent_settings)
        if tuned is not None
        else (),
        recorded,
        _made_later(context) if loading and choice.instead is None else frozenset(),
        begins and not choice.queued,
    )


def _begins_unasked(
    context: Context, snapshot: Snapshot, ready: EngineRevision | None, wanted: EngineRevision
) -> bool:
    """Tell whether engines that are ready would be replaced though their object is as it was: by a newer
    operator, say, or by other default images."""
    engine = snapshot.child("Deployment", context.children.engine)
    if engine is None or ready is None or not label_of(engine) == ready.label != wanted.label:
        return False
    meta, status = context.deployment.metadata, context.deployment.status
    same = status is not None and status.observed_generation == meta.generation
    return same and _restart_mark(ready) == _restart_mark(wanted)


def _restart_mark(revision: EngineRevision) -> str | None:
    return annotation(revision.template, names.ANNOTATION_RESTART)


def _tuned(
    context: Context, snapshot: Snapshot, revision: EngineRevision, now: datetime
) -> LiveSettings | None:
    """The settings that running engines take over; None where they cannot be told."""
    if not context.key_id:
        return None
    engine = snapshot.child("Deployment", context.children.engine)
    return live_settings(revision.document, snapshot.child("ConfigMap", context.children.engine), engine, now)


def _made_later(context: Context) -> frozenset[Ref]:
    return frozenset(Ref(kind, context.children.engine) for kind in ("Deployment", "ConfigMap"))
