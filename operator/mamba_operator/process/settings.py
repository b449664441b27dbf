"""Settings of the operator: the options of `mambaserve operator`.

Every option has an environment variable `MAMBASERVE_<NAME>`; the command line wins over the environment.
"""

import os
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mamba_api import names
from mamba_operator.render.context import PROMETHEUS, Scrapers

RENEWALS = 3
"""Number of renewals that have to fit into the duration of a lease."""


def _identity() -> str:
    # Inside a pod the host name is the pod's name; the process id distinguishes two processes on one machine.
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{os.getpid()}"


class OperatorSettings(BaseSettings):
    """Options of the operator."""

    model_config = SettingsConfigDict(
        env_prefix="MAMBASERVE_",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        env_ignore_empty=True,
        enable_decoding=False,  # lists are words in the environment, not JSON
    )

    namespace: tuple[str, ...] = ()
    """Namespace to watch; may be repeated, in the environment separated by spaces; default: the whole
    cluster."""
    kubeconfig: str | None = None
    """Kubeconfig file; default: the pod's service account, then KUBECONFIG."""
    request_timeout: float = Field(30.0, gt=0)
    """Longest time in seconds that one request to the API server may take."""
    lease: str = Field(names.LEASE_NAME, min_length=1, max_length=63)
    """Name of the Lease that lets one operator act at a time."""
    lease_namespace: str | None = None
    """Namespace of the Lease; default: the operator's own, else the first that it watches, else default."""
    lease_duration: float = Field(15.0, gt=0)
    """Time in seconds for which a holder that stops renewing keeps the Lease."""
    renew_every: float = Field(4.0, gt=0)
    """Time in seconds between two renewals of the Lease, at most a third of its duration."""
    identity: str = Field(default_factory=_identity, min_length=1)
    """Name of this process as holder of the Lease; default: the name of the pod, or of the machine, and the
    process id."""
    workers: int = Field(8, ge=1, le=64)
    """Number of MambaDeployments and MambaGateways that are reconciled at the same time."""
    resync: float = Field(300.0, gt=0)
    """Longest time in seconds between two reconciliations of an unchanged object."""
    reconcile_timeout: float = Field(120.0, gt=0)
    """Longest time in seconds that one reconciliation may take."""
    max_rollouts: int = Field(3, ge=1, le=1000)
    """Number of MambaDeployments whose engines are replaced at the same time although nobody changed them,
    for instance after an upgrade of the operator; the others wait. Changes of an object, including a
    requested restart, never wait."""
    scale_every: float = Field(10.0, ge=1, le=60)
    """Time in seconds between two polls of the load of engines whose number the operator decides."""
    engine_image: str = Field(names.IMAGE, min_length=1, max_length=512)
    """Image of engines whose MambaDeployment names none."""
    gateway_image: str = Field(names.CONTROL_PLANE_IMAGE, min_length=1, max_length=512)
    """Image of gateways whose MambaDeployment names none."""
    image_pull_secret: tuple[str, ...] = ()
    """Secret for image pulls of engines and gateways, in each MambaDeployment's namespace; may be repeated,
    in the environment separated by spaces."""
    scrapers: Scrapers = PROMETHEUS
    """Pods other than gateways and operator that may read the engines' metrics: a JSON list such as
    [{"namespaces": {"kubernetes.io/metadata.name": "monitoring"}, "pods": {"app": "agent"}}].
    Default: pods labelled app.kubernetes.io/name: prometheus, in any namespace."""
    resource_profiles: Path | None = None
    """YAML file with resourceProfiles, in the form of the chart's values: profiles for spec.resources.profile
    in addition to the shipped ones or in their place. Read once."""
    external_metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port of the external metrics API, which autoscalers read through the API server; 0 = any free port;
    default: the API is not served."""
    external_metrics_service: str = Field("mambaserve-external-metrics", min_length=1, max_length=63)
    """Service in the operator's namespace to which the APIService of the external metrics API points."""
    liveness_host: str | None = None
    """Address of /healthz, /readyz and /metrics; default: every address in a pod, elsewhere 127.0.0.1."""
    liveness_port: int = Field(names.OPERATOR_LIVENESS_PORT, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics; 0 = any free port."""
    stale_after: float = Field(90.0, gt=0)
    """Time in seconds by which a watch may lag behind a list before /healthz fails."""
    exit_timeout: float = Field(10.0, gt=0)
    """Longest time in seconds to finish running work after a signal."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""

    @field_validator("namespace", "image_pull_secret", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value

    @field_validator("renew_every")
    @classmethod
    def _one_renewal_may_fail(cls, value: float, info: ValidationInfo) -> float:
        longest = info.data.get("lease_duration", value * RENEWALS) / RENEWALS
        if value > longest:
            raise ValueError(
                f"{value:g} s is more than a third of the lease's duration, so one failed renewal would cost "
                f"the lease: at most {longest:g} s"
            )
        return value
