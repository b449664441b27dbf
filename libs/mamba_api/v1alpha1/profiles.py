"""`ResourceProfile`, a named set of resources, and `with_profile`, which fills it into a MambaDeployment.

The operator's `plan` and local mode call it where they read an object, so that all later code sees plain
fields. Pure.

`read_profiles` reads them from YAML text, the chart's values below `resourceProfiles`: the operator and the
command line read the same file.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from mamba_api.choices import Role
from mamba_api.errors import InvalidDocument, InvalidProfile, UnknownProfile
from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName
from mamba_api.v1alpha1.deployment import MambaDeployment, Spec
from mamba_api.v1alpha1.documents import explain, parse
from mamba_api.v1alpha1.engine import Memory
from mamba_api.v1alpha1.pods import (
    GpuResource,
    LabelKey,
    LabelValue,
    ProfileName,
    Resources,
    Scheduling,
)
from mamba_api.v1alpha1.pool_deployments import pool_deployments


class ResourceProfile(ApiModel):
    """Resources that a name in `spec.resources.profile` stands for. Absent fields are left to the object."""

    gpus: Annotated[int, Field(ge=0, le=1)] | None = None
    """Value of spec.resources.gpus; an engine uses at most one."""
    gpu_resource: GpuResource | None = None
    """Value of spec.resources.gpuResource."""
    cpu: Quantity | None = None
    """Value of spec.resources.cpu."""
    memory: Quantity | None = None
    """Value of spec.resources.memory."""
    device_memory: Quantity | None = None
    """Value of spec.memory.deviceMemory. It applies only if the object changes neither the GPU nor a node
    label of the profile, because it would otherwise describe another device."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels a node must have, in addition to spec.scheduling.nodeSelector."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """Taints the pods tolerate, in addition to spec.scheduling.tolerations."""
    runtime_class_name: ObjectName | None = None
    """Value of spec.scheduling.runtimeClassName."""


Profiles = Mapping[ProfileName, ResourceProfile]
"""Resource profiles by name."""


def profiled_pools(deployment: MambaDeployment, profiles: Profiles) -> dict[Role, MambaDeployment]:
    """Return the deployment of each pool by role, with the profile of each filled in.

    Raises:
        UnknownProfile: no profile has that name; the message lists the existing ones.
        InvalidProfile: a pool breaks a rule with its profile.
    """
    pools = {role: with_profile(pool, profiles) for role, pool in pool_deployments(deployment).items()}
    declared = deployment.spec.disaggregation
    for role, pool in pools.items():
        if declared is not None and declared.transport == "Nixl" and pool.spec.resources.gpus:
            raise InvalidProfile(
                f"with the resources.profile {pool.spec.resources.profile}: disaggregation.transport Nixl is "
                f"for engines without GPUs in this version: use Sockets, or set disaggregation.{role}."
                "resources.gpus to 0"
            )
    return pools


def with_profile(deployment: MambaDeployment, profiles: Profiles) -> MambaDeployment:
    """Return the object with its profile filled in, or unchanged if it names none.

    An object with disaggregation is returned as it is, once the profiles of its pools are checked: each pool
    may have another profile (see `profiled_pools`).

    Raises:
        UnknownProfile: no profile has that name; the message lists the existing ones.
        InvalidProfile: the object breaks a rule with this profile.
    """
    spec = deployment.spec
    if spec.disaggregation is not None:
        profiled_pools(deployment, profiles)
        return deployment
    name = spec.resources.profile
    if name is None:
        return deployment
    if (profile := profiles.get(name)) is None:
        raise UnknownProfile(_unknown_profile(name, profiles))
    resources = _fill(spec.resources, {field: getattr(profile, field) for field in _RESOURCE_FIELDS})
    scheduling = Scheduling(
        **_fields_set(spec.scheduling)
        | {
            "node_selector": {**profile.node_selector, **spec.scheduling.node_selector},
            "tolerations": _union(spec.scheduling.tolerations, profile.tolerations),
            "runtime_class_name": spec.scheduling.runtime_class_name or profile.runtime_class_name,
        }
    )
    memory = spec.memory
    if _same_device(profile, resources, scheduling):
        memory = Memory(**{"device_memory": profile.device_memory} | _fields_set(memory))
    parts = {"resources": resources, "scheduling": scheduling, "memory": memory}
    try:
        filled = Spec(**_fields_set(spec) | parts)
    except ValidationError as error:
        raise InvalidProfile(f"with the resources.profile {name}: {'; '.join(explain(error))}") from None
    return deployment.model_copy(update={"spec": filled})


_RESOURCE_FIELDS = ("gpus", "gpu_resource", "cpu", "memory")


def _fill(resources: Resources, profile_values: Mapping[str, Any]) -> Resources:
    defined = {field: value for field, value in profile_values.items() if value is not None}
    # The number of GPUs is always set: a rule treats an unset one as decided by the profile.
    return Resources(**{"gpus": resources.gpus} | defined | _fields_set(resources))


def _fields_set(part: ApiModel) -> dict[str, Any]:
    return {field: getattr(part, field) for field in part.model_fields_set}


def _union(own: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*own, *(toleration for toleration in more if toleration not in own)]


def _same_device(profile: ResourceProfile, resources: Resources, scheduling: Scheduling) -> bool:
    defaults = Resources()
    return (
        resources.gpus == (defaults.gpus if profile.gpus is None else profile.gpus)
        and resources.gpu_resource == (profile.gpu_resource or defaults.gpu_resource)
        and profile.node_selector.items() <= scheduling.node_selector.items()
    )


def _unknown_profile(name: str, profiles: Profiles) -> str:
    close = difflib.get_close_matches(name, profiles, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"spec.resources.profile: no profile {name}{hint}; known: {', '.join(sorted(profiles)) or 'none'}"


def profile_in_words(deployment: MambaDeployment) -> str:
    """Describe in one clause the resources of an object with a profile; empty without a profile."""
    spec = deployment.spec
    if (name := spec.resources.profile) is None:
        return ""
    fields = {
        "gpus": spec.resources.gpus,
        "gpuResource": spec.resources.gpu_resource if spec.resources.gpus else None,
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory,
        "deviceMemory": spec.memory.device_memory,
        "nodeSelector": ",".join(f"{key}={value}" for key, value in spec.scheduling.node_selector.items()),
        "tolerations": ",".join(str(item.get("key", "*")) for item in spec.scheduling.tolerations),
        "runtimeClassName": spec.scheduling.runtime_class_name,
    }
    text = ", ".join(f"{field} {value}" for field, value in fields.items() if value not in (None, ""))
    return f"with the profile {name}: {text}"


PROFILES_KEY = "resourceProfiles"
_NAME: TypeAdapter[str] = TypeAdapter(ProfileName)


def read_profiles(text: str, source: str) -> Profiles:
    """Return the profiles of a YAML document by name.

    Args:
        text: YAML, a mapping with `resourceProfiles`; other keys of a chart's values are ignored.
        source: name of the text in messages: a file name.

    Raises:
        InvalidDocument: all problems, one line each.
    """
    documents = [document for document in parse(text, source) if document is not None]
    entries = (
        documents[0].get(PROFILES_KEY, ()) if len(documents) == 1 and isinstance(documents[0], dict) else ()
    )
    if not isinstance(entries, dict | None):
        form = "write a map of names to profiles, as in the chart's values"
        raise InvalidDocument(source, [f"{source}: no {PROFILES_KEY} in it: {form}"])
    profiles: dict[str, ResourceProfile] = {}
    problems: list[str] = []
    for name, profile in (entries or {}).items():
        try:
            profiles[_NAME.validate_python(name)] = _read(profile)
        except ValidationError as error:
            lines = explain(error, ResourceProfile)
            problems += [f"{source}: {PROFILES_KEY}.{name}{_below(line)}" for line in lines]
    if problems:
        raise InvalidDocument(source, problems)
    return profiles


def _read(profile: Any) -> ResourceProfile:
    return ResourceProfile.model_validate({} if profile is None else profile, by_alias=True, by_name=False)


def _below(line: str) -> str:
    """Return a line of `explain` in a form that can follow the path of the profile or of its field."""
    return line if line.startswith(":") else f".{line}"
