"""Model of the status of a MambaGateway, its conditions and their reasons. Only the operator writes it."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from mamba_api.v1alpha1.base import LongText, StatusModel, Text, map_by
from mamba_api.v1alpha1.status import Condition, Count

ModelState = Literal["Ready", "Starting", "Zero", "Unavailable"]


class ServedModel(StatusModel):
    """One model at the address."""

    name: Text
    """Name that requests use and /v1/models lists."""
    deployment: Text
    """MambaDeployment that serves the model."""
    state: ModelState
    """Ready: engines answer. Zero: no engine runs, and a request starts one. Starting: engines start.
    Unavailable: no engine answers; the conditions of the MambaDeployment show why."""
    aliases: Annotated[list[Text], Field(max_length=32)] = []
    """Further names of the model."""
    adapters: Annotated[list[Text], Field(max_length=32)] = []
    """Names of the model's LoRA adapters that are reached here."""


class GatewayStatus(StatusModel):
    """The observed state of a MambaGateway."""

    observed_generation: Count = 0
    """metadata.generation that the status was computed from."""
    url: LongText = ""
    """OpenAI base URL inside the cluster."""
    replicas: Count = 0
    """Number of gateway pods."""
    ready_replicas: Count = 0
    """Number of gateway pods that are ready."""
    selector: LongText = ""
    """Label selector of the gateway pods, for autoscalers."""
    ready_models: LongText = ""
    """Number of models that answer or are woken by a request, of all models, such as 2/3."""
    models: Annotated[list[ServedModel], Field(max_length=64)] = []
    """The models, sorted by name."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=32,
            json_schema_extra=map_by("type"),
        ),
    ] = []
    """ModelsResolved, Available, Degraded and Ready."""


class GatewayConditionType(StrEnum):
    """Condition types of a MambaGateway in display order. Ready sums up the others."""

    MODELS_RESOLVED = "ModelsResolved"
    AVAILABLE = "Available"
    DEGRADED = "Degraded"
    READY = "Ready"


class GatewayReason(StrEnum):
    """Reasons that only conditions of a MambaGateway have.

    Its conditions also use reasons of a MambaDeployment.
    """

    ALL_NAMES_RESOLVED = "AllNamesResolved"
    NO_MODELS = "NoModels"
    KEYS_REQUIRED = "KeysRequired"
    NAMES_CONFLICT = "NamesConflict"
    NAMES_UNKNOWN = "NamesUnknown"
    TOO_MANY_MODELS = "TooManyModels"
    GATEWAYS_AVAILABLE = "GatewaysAvailable"


GATEWAY_REASONS: dict[GatewayReason, str] = {
    GatewayReason.ALL_NAMES_RESOLVED: "Each name belongs to one model, and each name in the spec to a model.",
    GatewayReason.NO_MODELS: (
        "The selector matches no MambaDeployment that serves, so the address lists no model. Correct "
        "spec.selector, or the labels of the MambaDeployments."
    ),
    GatewayReason.KEYS_REQUIRED: (
        "MambaDeployments with spec.gateway.auth match the selector of a gateway without spec.auth, which "
        "would let everybody call them. The message names them; they are left out. Set spec.auth."
    ),
    GatewayReason.NAMES_CONFLICT: (
        "Two models claim one name; the message names both and the one that has it. An alias of the spec "
        "wins over a served name, and the older MambaDeployment over the younger one, which is reached by "
        "the name of its object. Give one of them another spec.model.servedName, or change the alias."
    ),
    GatewayReason.NAMES_UNKNOWN: (
        "The spec names models that are none at this address, as default, in aliases, fallbacks or keys; the "
        "message lists them. They count as absent until such a model appears."
    ),
    GatewayReason.TOO_MANY_MODELS: (
        "The selector matches more MambaDeployments than one address serves; the message names those left "
        "out, the youngest. Split them over several MambaGateways."
    ),
    GatewayReason.GATEWAYS_AVAILABLE: "At least one gateway answers.",
}
