"""`spec.model`: which model, and what it is called in the API."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from mamba_api.model_uri import FORMS, URI_PATTERN, ModelUri, parse_model_uri
from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName
from mamba_api.v1alpha1.secret_ref import SecretKeyRef

URI_RULE: JsonDict = {"rule": f"self.matches(r'{URI_PATTERN}')", "message": f"use {FORMS}"}


def _check_uri(text: str) -> str:
    parse_model_uri(text)
    return text


Uri = Annotated[
    str,
    Field(min_length=1, max_length=1024, json_schema_extra={"x-kubernetes-validations": [URI_RULE]}),
    AfterValidator(_check_uri),
]


class ModelCache(ApiModel):
    """A volume that keeps downloaded weights, so that later pods start without a download."""

    size: Quantity
    """Size of the volume, at least that of the weights."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume; absent = the cluster's default."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """ReadWriteMany lets every node share the volume; ReadWriteOnce is enough on one node."""


class Model(ApiModel):
    """The model that is served."""

    uri: Uri
    """Where the weights are: hf://owner/name[@revision], pvc://claim/path, file:///path (in local mode
    relative to the YAML when it starts with file://./) or builtin://tiny-recall. A change is a roll-out."""
    served_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the model in the OpenAI API; absent = metadata.name."""
    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Longest prompt plus output in tokens; absent = the model's own limit."""
    config: FreeForm | None = None
    """The model's Hugging Face config.json inline, so that the plan is known before any pod starts."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the access token for gated hf:// models."""
    cache: ModelCache | None = None
    """Keep downloaded weights on a volume; absent = each pod downloads into its own scratch space."""

    @property
    def location(self) -> ModelUri:
        """The URI taken apart."""
        return parse_model_uri(self.uri)
