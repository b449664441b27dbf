"""`apply`: carries a plan out, child by child, and tells what was done and what failed.

One failing child does not keep the others from being applied. Called by `reconcile`; decides nothing.
"""

from dataclasses import dataclass, field

from mamba_operator.client import KubeClient
from mamba_operator.errors import (
    Conflict,
    NameTaken,
    OperatorError,
    Terminating,
    Unreachable,
)
from mamba_operator.kinds import BY_NAME
from mamba_operator.manifest import Manifest, Ref, is_terminating, metadata, owner_uid, ref
from mamba_operator.plan import Apply, Change, Delete, Plan
from mamba_operator.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Done:
    """One change that was made."""

    ref: Ref
    change: Change
    detail: str = ""


@dataclass(slots=True)
class Outcome:
    """What came of a plan."""

    done: list[Done] = field(default_factory=list)
    errors: list[OperatorError] = field(default_factory=list)


async def apply(client: KubeClient, snapshot: Snapshot, plan: Plan) -> Outcome:
    """Apply, then delete, in the plan's order.

    Raises:
        Unreachable: the API server is away; the rest of the plan is left for the next pass.
    """
    outcome = Outcome()
    for one in plan.terminating:
        outcome.errors.append(Terminating(f"{one} is being deleted and is made again when it is gone"))
    for change in plan.applies:
        try:
            if await _apply(client, snapshot, change):
                outcome.done.append(Done(ref(change.manifest), change.change, change.detail))
        except Unreachable:
            raise
        except OperatorError as error:
            outcome.errors.append(error)
    for removal in plan.deletes:
        try:
            await _delete(client, snapshot, removal)
            outcome.done.append(Done(removal.ref, removal.change))
        except Unreachable:
            raise
        except Conflict:
            # It was replaced in between: the next pass sees what is there now.
            continue
        except OperatorError as error:
            outcome.errors.append(error)
    return outcome


async def _apply(client: KubeClient, snapshot: Snapshot, change: Apply) -> bool:
    """Whether the child is another one than before."""
    one = ref(change.manifest)
    before = snapshot.children.get(one)
    if before is None:
        await _name_is_free(client, snapshot, one)
    if change.create_only:
        try:
            await client.create(change.manifest)
        except Conflict:
            # Somebody made it since we looked; what is in it counts.
            return False
        return True
    after = await client.apply(change.manifest)
    return before is None or metadata(after).get("resourceVersion") != metadata(before).get("resourceVersion")


async def _name_is_free(client: KubeClient, snapshot: Snapshot, one: Ref) -> None:
    """Apply with force would take over whatever has the name: look before."""
    found = await client.get(BY_NAME[one.kind], snapshot.key.namespace, one.name)
    if found is None or owner_uid(found) == snapshot.uid:
        return
    if is_terminating(found) or owner_uid(found) is not None:
        raise Terminating(f"{one} of an earlier {snapshot.key.name} is being collected")
    raise NameTaken(
        f"{one} exists and does not belong to this MambaDeployment: rename the one or the other, or delete it"
    )


async def _delete(client: KubeClient, snapshot: Snapshot, removal: Delete) -> None:
    await client.delete(BY_NAME[removal.ref.kind], snapshot.key.namespace, removal.ref.name, removal.uid)


def status_manifest(owner: Manifest, status: Manifest) -> Manifest:
    """What the one status write sends; the uid keeps it from reaching a newer object of the same name."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
        "status": status,
    }
