"""`serving.mambaserve.io/v1alpha1`: the MambaDeployment, one noun per file.

Ordinary pydantic models: the CRD, the reference page, local mode, the CLI and the operator all read them.
Defaults live here and nowhere else.
"""

from mamba_api.v1alpha1.deployment import MambaDeployment, Metadata, Spec
from mamba_api.v1alpha1.disaggregation import Disaggregation
from mamba_api.v1alpha1.engine import Engine, EnvVar
from mamba_api.v1alpha1.gateway import Auth, Gateway, Limits, Routing
from mamba_api.v1alpha1.memory import Memory
from mamba_api.v1alpha1.model import Model, ModelCache
from mamba_api.v1alpha1.prefix_index import PrefixIndex, Redis
from mamba_api.v1alpha1.resources import Resources
from mamba_api.v1alpha1.rollout import Rollout
from mamba_api.v1alpha1.scaling import Scaling
from mamba_api.v1alpha1.scheduling import Scheduling
from mamba_api.v1alpha1.secret_ref import SecretKeyRef, SecretRef
from mamba_api.v1alpha1.state_cache import StateCache, StateDtype, Strategy
from mamba_api.v1alpha1.status import (
    Condition,
    LedgerEntry,
    Plan,
    RejectedChoice,
    ScalingDecision,
    ScalingStatus,
    Status,
)
from mamba_api.v1alpha1.telemetry import Telemetry
from mamba_api.v1alpha1.workload import Workload

__all__ = [
    "Auth",
    "Condition",
    "Disaggregation",
    "Engine",
    "EnvVar",
    "Gateway",
    "LedgerEntry",
    "Limits",
    "MambaDeployment",
    "Memory",
    "Metadata",
    "Model",
    "ModelCache",
    "Plan",
    "PrefixIndex",
    "Redis",
    "RejectedChoice",
    "Resources",
    "Rollout",
    "Routing",
    "Scaling",
    "ScalingDecision",
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
    "Workload",
]
