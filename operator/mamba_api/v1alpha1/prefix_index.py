"""`spec.prefixIndex`: where gateways learn which engine can resume which prefix."""

from typing import Annotated

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel, Rule
from mamba_api.v1alpha1.secret_ref import SecretRef


class Redis(ApiModel):
    """A Redis that all gateways and engines of the deployment share."""

    url: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^(rediss?|unix)://.+$")] | None = None
    """Address, such as redis://redis.cache.svc:6379/0."""
    secret_ref: SecretRef | None = None
    """Secret whose key url holds the whole address with its password; instead of url."""

    rules = (
        Rule(
            cel="has(self.url) != has(self.secretRef)",
            message="redis needs either url or secretRef: give exactly one",
            holds=lambda self: (self.url is None) != (self.secret_ref is None),
        ),
    )


class PrefixIndex(ApiModel):
    """Shared knowledge of resumable prefixes."""

    redis: Redis | None = None
    """Share the index through Redis; absent = each gateway learns from its own traffic."""
