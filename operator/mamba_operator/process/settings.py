"""Settings of the operator: the options of `mambaserve operator`. Times are seconds.

Every option has an environment variable `MAMBASERVE_<NAME>`; the command line wins.
"""

import os
import socket

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
    """Settings of one operator process."""

    model_config = SettingsConfigDict(
        env_prefix="MAMBASERVE_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty = the whole cluster."""
    kubeconfig: str | None = None
    """Path of a kubeconfig; none = in-cluster configuration, then the default kubeconfig."""
    liveness_host: str | None = None
    """Address of the liveness and metrics server; none = all of a pod, else 127.0.0.1."""
    liveness_port: int = Field(names.OPERATOR_LIVENESS_PORT, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics; 0 takes a free one."""
    external_metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port of the external metrics API, which autoscalers read through the API server; 0 takes a free one,
    none = it is not served."""
    external_metrics_service: str = Field("mambaserve-external-metrics", min_length=1, max_length=63)
    """Service, in the operator's own namespace, that the APIService of the external metrics API names."""
    lease: str = Field(names.LEASE_NAME, min_length=1, max_length=63)
    """Name of the Lease that lets one operator act at a time."""
    lease_namespace: str | None = None
    """Namespace of the Lease; none = the operator's own, else the first served, else default."""
    lease_duration: float = Field(15.0, gt=0)
    """Time for which a holder that stops renewing keeps the Lease."""
    renew_every: float = Field(4.0, gt=0)
    """Time between two renewals."""
    identity: str = Field(default_factory=_identity, min_length=1)
    """Name of this process as holder of the Lease."""
    workers: int = Field(8, ge=1, le=64)
    """Number of MambaDeployments that are reconciled at the same time."""
    resync: float = Field(300.0, gt=0)
    """Longest time between two passes over a MambaDeployment without changes."""
    request_timeout: float = Field(30.0, gt=0)
    """Longest time one request to the API server may take."""
    reconcile_timeout: float = Field(120.0, gt=0)
    """Longest time one reconcile may take."""
    scale_every: float = Field(10.0, ge=1, le=60)
    """Time between two polls of the load of engines whose number the operator decides."""
    max_rollouts: int = Field(3, ge=1, le=1000)
    """Number of MambaDeployments whose engines are replaced at the same time although nobody changed them,
    for instance after an upgrade of the operator; the others wait. Changes of an object, including a
    requested restart, never wait."""
    stale_after: float = Field(90.0, gt=0)
    """Time by which a watch may lag behind a list before liveness fails."""
    exit_timeout: float = Field(10.0, gt=0)
    """Longest time to finish running work after a signal."""
    engine_image: str = Field(names.IMAGE, min_length=1, max_length=512)
    """Image of engines whose object names none."""
    gateway_image: str = Field(names.CONTROL_PLANE_IMAGE, min_length=1, max_length=512)
    """Image of gateways whose object names none."""
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets with which engines and gateways pull images; they have to exist in each object's namespace."""
    scrapers: Scrapers = PROMETHEUS
    """Pods that may read the engines' metrics, besides gateways and operator; a JSON list of label maps."""
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")
    """Least severe message that is logged."""

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
