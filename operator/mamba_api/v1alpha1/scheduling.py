"""`spec.scheduling`: which nodes the engine pods may run on."""

from typing import Annotated

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName

LabelKey = Annotated[str, Field(min_length=1, max_length=316)]
LabelValue = Annotated[str, Field(max_length=63)]


class Scheduling(ApiModel):
    """Placement of engine pods; each field means what it means in a pod."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels a node must have."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """Taints the pods tolerate."""
    affinity: FreeForm | None = None
    """Affinity rules of the pods."""
    priority_class_name: ObjectName | None = None
    """Priority class of the pods."""
    runtime_class_name: ObjectName | None = None
    """Runtime class of the pods, such as nvidia."""
