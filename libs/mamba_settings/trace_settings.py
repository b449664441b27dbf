"""Settings of traces, the same at engine and gateway, and their form in a MambaDeployment.

`mamba_telemetry` acts on them. The standard OTEL_* variables supply missing values.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mamba_api.names import ENV_PREFIX
from mamba_api.v1alpha1 import MambaDeployment, Telemetry

_SLOW_AFTER = Telemetry().slow_after


class TraceSettings(BaseModel):
    """Traces."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    otlp_endpoint: str | None = Field(None, min_length=1, pattern=r"^https?://.+$")
    """OTLP endpoint that spans are sent to, such as http://collector:4318; default:
    OTEL_EXPORTER_OTLP_ENDPOINT, else no traces."""
    otlp_protocol: Literal["http/protobuf", "grpc"] | None = None
    """Protocol of the endpoint; default: OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf."""
    trace_sampling: float | None = Field(None, ge=0, le=1)
    """Share of requests whose spans are kept, unless the caller has decided; default: OTEL_TRACES_SAMPLER,
    else all."""
    slow_request: float = Field(_SLOW_AFTER.seconds, ge=0)
    """Seconds to the first byte from which a request's spans are kept whatever the share, like those of
    failed requests; 0 = slow requests are not kept specially."""


def trace_variables(deployment: MambaDeployment) -> dict[str, str]:
    """Return the environment variables that configure traces of an engine or gateway of `deployment`.

    The result is empty if the deployment requests no traces.
    """
    telemetry = deployment.spec.telemetry
    if telemetry.otlp_endpoint is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": telemetry.otlp_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": telemetry.protocol,
        # The client decides for its request, else the first process that sees it decides for all others.
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": f"{telemetry.sampling!r}",
        "OTEL_RESOURCE_ATTRIBUTES": (
            f"k8s.namespace.name={deployment.namespace},mambaserve.deployment={deployment.name}"
        ),
        f"{ENV_PREFIX}SLOW_REQUEST": f"{telemetry.slow_after.seconds:g}",
    }
