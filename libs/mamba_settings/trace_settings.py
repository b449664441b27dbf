"""Where traces go and which: the same settings at engine and gateway, and how a MambaDeployment says them.

Acted on by `mamba_telemetry`. What is left out is as the standard OTEL_* variables say.
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
    OTEL_EXPORTER_OTLP_ENDPOINT, and without either no traces."""
    otlp_protocol: Literal["http/protobuf", "grpc"] | None = None
    """How they are sent; default: OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf."""
    trace_sampling: float | None = Field(None, ge=0, le=1)
    """Share of requests whose spans are kept, where the caller has not decided it; default:
    OTEL_TRACES_SAMPLER, else all."""
    slow_request: float = Field(_SLOW_AFTER.seconds, ge=0)
    """Seconds without a first byte after which a request's spans are kept whatever the share, as those of
    failed ones are; 0 = however slow it is."""


def trace_variables(deployment: MambaDeployment) -> dict[str, str]:
    """The environment of an engine or gateway of `deployment` that says what it says of traces; empty where
    it asks for none."""
    telemetry = deployment.spec.telemetry
    if telemetry.otlp_endpoint is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": telemetry.otlp_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": telemetry.protocol,
        # The first process that sees a request decides for all, and where a client did, the client.
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": f"{telemetry.sampling!r}",
        "OTEL_RESOURCE_ATTRIBUTES": (
            f"k8s.namespace.name={deployment.namespace},mambaserve.deployment={deployment.name}"
        ),
        f"{ENV_PREFIX}SLOW_REQUEST": f"{telemetry.slow_after.seconds:g}",
    }
