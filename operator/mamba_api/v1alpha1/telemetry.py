"""`spec.telemetry`: where traces go."""

from typing import Annotated

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel


class Telemetry(ApiModel):
    """Tracing of gateway and engines; metrics are always served at /metrics."""

    otlp_endpoint: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^https?://.+$")] | None = (
        None
    )
    """OTLP endpoint, such as http://collector.observability.svc:4318; absent = no traces."""
    sampling: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of requests that are traced when the client did not decide."""
