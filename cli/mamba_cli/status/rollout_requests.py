"""`CanaryView`: the canary of a MambaDeployment by its status, and the requests of a person about it.

A request is an annotation that names the revision of the candidate, which the operator reads in its next
pass. Nothing else is written.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote

from mamba_api import names
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.status.deployment_status import deployments_of

Verb = Literal["pause", "resume", "promote", "abort"]


@dataclass(frozen=True, slots=True)
class CanaryView:
    """The canary of one MambaDeployment, or why the last one was taken back."""

    name: str
    namespace: str
    ready_revision: str
    """Revision that all engines run, or that serves beside the candidate."""
    canary: dict[str, Any] | None
    """`status.canary`; None = no canary is under way."""
    failed: dict[str, str] | None
    """Revision, reason and message of the change that was taken back; None = none was."""
    request: str = ""
    """The last request of a person."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rollout status --output json` prints."""
        return asdict(self)


async def canary_view(namespace: str, name: str, kubeconfig: str | None, timeout: float) -> CanaryView:
    """Return the canary of a MambaDeployment. Raises the errors of `deployments_of`.

    The API server has to answer within `timeout` seconds.
    """
    [manifest] = await deployments_of(namespace, name, kubeconfig, timeout)
    status, meta = manifest.get("status") or {}, manifest.get("metadata") or {}
    rollout = status.get("rollout") or {}
    failed = None
    if rollout.get("failedRevision"):
        failed = {
            "revision": str(rollout["failedRevision"]),
            "reason": str(rollout.get("reason", "")),
            "message": str(rollout.get("message", "")),
        }
    return CanaryView(
        str(meta.get("name", name)),
        str(meta.get("namespace", namespace)),
        str(rollout.get("readyRevision", "")),
        status.get("canary"),
        failed,
        str((meta.get("annotations") or {}).get(names.ANNOTATION_CANARY, "")),
    )


async def request_of_canary(
    verb: Verb, namespace: str, name: str, kubeconfig: str | None, timeout: float
) -> CanaryView:
    """Ask the operator to pause, resume, promote or abort the canary, and return that canary.

    Each answer of the API server may take `timeout` seconds. Raises the errors of `deployments_of`, and
    `InvalidInput` if no canary is under way or the verb cannot apply to it.
    """
    from mamba_kube.access import connected, load_access
    from mamba_kube.api_server import MERGE_PATCH
    from mamba_kube.errors import ApiError

    view = await canary_view(namespace, name, kubeconfig, timeout)
    canary = view.canary
    if canary is None:
        raise InvalidInput(f"{name}: no canary is under way, so there is nothing to {verb}")
    if canary.get("phase") == "Promoting":
        raise InvalidInput(
            f"{name}: revision {canary['revision']} is promoted already; to go back, undo the change of the "
            "spec"
        )
    if verb == "resume" and canary.get("phase") not in ("Paused", "Waiting"):
        raise InvalidInput(f"{name}: the canary is neither paused nor waiting, so there is nothing to resume")
    text = f"{verb} {canary['revision']}"
    if verb == "resume":
        text += f" {canary.get('step', 0)}"
    collection = f"/apis/{names.API_VERSION}/namespaces/{quote(namespace, safe='')}/{names.PLURAL}"
    path = f"{collection}/{quote(name, safe='')}"
    patch = {"metadata": {"annotations": {names.ANNOTATION_CANARY: text}}}
    try:
        async with connected(await load_access(kubeconfig), timeout=timeout) as server:
            await server.request(
                "PATCH", path, query={"fieldManager": "mambaserve-cli"}, body=patch, content_type=MERGE_PATCH
            )
    except ApiError as error:
        raise RunFailed(str(error)) from error
    return view
