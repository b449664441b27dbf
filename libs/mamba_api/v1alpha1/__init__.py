"""`serving.mambaserve.io/v1alpha1`: the MambaDeployment.

Ordinary pydantic models: the CRD, the reference page, local mode, the CLI and the operator all read them.
Defaults live here and nowhere else. The MambaGateway of the same API is imported from `mamba_gateway`.
"""

from mamba_api.choices import Strategy
from mamba_api.v1alpha1.base import SecretKeyRef, SecretRef
from mamba_api.v1alpha1.canary import (
    Canary,
    CanaryAnalysis,
    CanaryComparison,
    CanaryShadow,
    CanaryStatus,
    CanaryStep,
)
from mamba_api.v1alpha1.deployment import MambaDeployment, Metadata, Spec
from mamba_api.v1alpha1.engine import (
    DiskCache,
    Engine,
    EnvVar,
    Memory,
    Model,
    ModelCache,
    StateCache,
    StateDtype,
    TieredStateCache,
    Workload,
)
from mamba_api.v1alpha1.gateway import (
    Auth,
    Gateway,
    InferencePool,
    Limits,
    PrefixIndex,
    Redis,
    Routing,
    Telemetry,
)
from mamba_api.v1alpha1.pods import Resources, Rollout, Scaling, Scheduling
from mamba_api.v1alpha1.pool_deployments import pool_deployments
from mamba_api.v1alpha1.pools import Disaggregation, Pool
from mamba_api.v1alpha1.status import (
    Condition,
    LedgerEntry,
    PlanStatus,
    PoolStatus,
    ProposedStrategy,
    RejectedChoice,
    RolloutStatus,
    ScalingChange,
    ScalingStatus,
    Status,
    WorkloadStatus,
)

__all__ = [
    "Auth",
    "Canary",
    "CanaryAnalysis",
    "CanaryComparison",
    "CanaryShadow",
    "CanaryStatus",
    "CanaryStep",
    "Condition",
    "Disaggregation",
    "DiskCache",
    "Engine",
    "EnvVar",
    "Gateway",
    "InferencePool",
    "LedgerEntry",
    "Limits",
    "MambaDeployment",
    "Memory",
    "Metadata",
    "Model",
    "ModelCache",
    "PlanStatus",
    "Pool",
    "PoolStatus",
    "PrefixIndex",
    "ProposedStrategy",
    "Redis",
    "RejectedChoice",
    "Resources",
    "Rollout",
    "RolloutStatus",
    "Routing",
    "Scaling",
    "ScalingChange",
    "ScalingStatus",
    "Scheduling",
    "SecretKeyRef",
    "SecretRef",
    "Spec",
    "StateCache",
    "StateDtype",
    "Status",
    "Strategy",
    "Telemetry",
    "TieredStateCache",
    "Workload",
    "WorkloadStatus",
    "pool_deployments",
]
