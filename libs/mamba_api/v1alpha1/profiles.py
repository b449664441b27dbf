"""`ResourceProfile`, a named set of resources, and `with_profile`, which fills it into a MambaDeployment.

Called where an object is read in: by the operator's `plan`, and by local mode. All that comes after sees
plain fields. Pure.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from mamba_api.errors import InvalidProfile, UnknownProfile
from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName
from mamba_api.v1alpha1.deployment import MambaDeployment, Spec
from mamba_api.v1alpha1.documents import explain
from mamba_api.v1alpha1.engine import Memory
from mamba_api.v1alpha1.pods import (
    GpuResource,
    LabelKey,
    LabelValue,
    ProfileName,
    Resources,
    Scheduling,
)


class ResourceProfile(ApiModel):
    """What stands for a name in `spec.resources.profile`. What is absent is left to the object."""

    gpus: Annotated[int, Field(ge=0, le=1)] | None = None
    """As spec.resources.gpus: an engine uses one at most."""
    gpu_resource: GpuResource | None = None
    """As spec.resources.gpuResource."""
    cpu: Quantity | None = None
    """As spec.resources.cpu."""
    memory: Quantity | None = None
    """As spec.resources.memory."""
    device_memory: Quantity | None = None
    """As spec.memory.deviceMemory. Taken where the object changes neither the GPU nor a node label of the
    profile, since it would be that of another device."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels a node must have, beside those of spec.scheduling.nodeSelector."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """Taints the pods tolerate, beside those of spec.scheduling.tolerations."""
    runtime_class_name: ObjectName | None = None
    """As spec.scheduling.runtimeClassName."""


Profiles = Mapping[ProfileName, ResourceProfile]
"""By name."""
NO_PROFILES: Profiles = {}


def with_profile(deployment: MambaDeployment, profiles: Profiles) -> MambaDeployment:
    """The object with its profile filled in, and as it is where it names none.

    Raises:
        UnknownProfile: there is none of that name; the message lists those that there are.
        InvalidProfile: with it the object breaks a rule.
    """
    spec = deployment.spec
    name = spec.resources.profile
    if name is None:
        return deployment
    if (profile := profiles.get(name)) is None:
        raise UnknownProfile(_unknown(name, profiles))
    resources = _filled(spec.resources, {field: getattr(profile, field) for field in _OF_RESOURCES})
    scheduling = Scheduling(
        **_said(spec.scheduling)
        | {
            "node_selector": {**profile.node_selector, **spec.scheduling.node_selector},
            "tolerations": _both(spec.scheduling.tolerations, profile.tolerations),
            "runtime_class_name": spec.scheduling.runtime_class_name or profile.runtime_class_name,
        }
    )
    memory = spec.memory
    if _same_device(profile, resources, scheduling):
        memory = Memory(**{"device_memory": profile.device_memory} | _said(memory))
    parts = {"resources": resources, "scheduling": scheduling, "memory": memory}
    try:
        filled = Spec(**_said(spec) | parts)
    except ValidationError as error:
        raise InvalidProfile(f"with the resources.profile {name}: {'; '.join(explain(error))}") from None
    return deployment.model_copy(update={"spec": filled})


_OF_RESOURCES = ("gpus", "gpu_resource", "cpu", "memory")


def _filled(resources: Resources, values: Mapping[str, Any]) -> Resources:
    given = {field: value for field, value in values.items() if value is not None}
    # What neither says is said now: the filled object has no open field that a rule would wait for.
    return Resources(**{"gpus": resources.gpus} | given | _said(resources))


def _said(part: ApiModel) -> dict[str, Any]:
    return {field: getattr(part, field) for field in part.model_fields_set}


def _both(own: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*own, *(one for one in more if one not in own)]


def _same_device(profile: ResourceProfile, resources: Resources, scheduling: Scheduling) -> bool:
    usual = Resources()
    return (
        resources.gpus == (usual.gpus if profile.gpus is None else profile.gpus)
        and resources.gpu_resource == (profile.gpu_resource or usual.gpu_resource)
        and profile.node_selector.items() <= scheduling.node_selector.items()
    )


def _unknown(name: str, profiles: Profiles) -> str:
    close = difflib.get_close_matches(name, profiles, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"spec.resources.profile: no profile {name}{meant}; known: {', '.join(sorted(profiles)) or 'none'}"


def profile_in_words(deployment: MambaDeployment) -> str:
    """What an object with a profile asks for in the end, as one clause; empty without a profile."""
    spec = deployment.spec
    if (name := spec.resources.profile) is None:
        return ""
    shown = {
        "gpus": spec.resources.gpus,
        "gpuResource": spec.resources.gpu_resource if spec.resources.gpus else None,
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory,
        "deviceMemory": spec.memory.device_memory,
        "nodeSelector": ",".join(f"{key}={value}" for key, value in spec.scheduling.node_selector.items()),
        "tolerations": ",".join(str(one.get("key", "*")) for one in spec.scheduling.tolerations),
        "runtimeClassName": spec.scheduling.runtime_class_name,
    }
    said = ", ".join(f"{field} {value}" for field, value in shown.items() if value not in (None, ""))
    return f"with the profile {name}: {said}"
