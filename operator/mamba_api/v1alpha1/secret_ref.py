"""References to Secrets of the object's own namespace."""

from typing import Annotated

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel, ObjectName

SecretKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class SecretRef(ApiModel):
    """A Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""


class SecretKeyRef(SecretRef):
    """One key of a Secret in the same namespace."""

    key: SecretKey = "token"
    """Key inside the Secret."""
