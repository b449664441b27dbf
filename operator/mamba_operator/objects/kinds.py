"""The kinds of the operator's objects, and the API paths of all kinds that the operator uses.

`observe` lists them, `main` watches them, `client` builds paths from them; RBAC in the chart mirrors them.
"""

from dataclasses import dataclass
from urllib.parse import quote

from mamba_api import names


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects of the Kubernetes API, with the URL paths to them."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def version(self) -> str:
        """Version inside the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Return the URL path of the collection, of one object or of a subresource."""
        parts = ["apis" if self.group else "api", *self.api_version.split("/")]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(quote(part, safe="") for part in parts)


MAMBA_DEPLOYMENT = Kind(names.API_VERSION, names.KIND, names.PLURAL)
MAMBA_GATEWAY = Kind(names.API_VERSION, names.GATEWAY_KIND, names.GATEWAY_PLURAL)
OWNERS: tuple[Kind, ...] = (MAMBA_DEPLOYMENT, MAMBA_GATEWAY)
"""Kinds that the operator reconciles."""

SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
JOB = Kind("batch/v1", "Job", "jobs")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")

HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
INFERENCE_POOL = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")

POD = Kind("v1", "Pod", "pods")
ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
API_SERVICE = Kind("apiregistration.k8s.io/v1", "APIService", "apiservices", namespaced=False)
SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)

OWNED: tuple[Kind, ...] = (
    SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, CLAIM, SERVICE, NETWORK_POLICY,
    DISRUPTION_BUDGET, JOB, DEPLOYMENT,
)  # fmt: skip
"""Kinds of children in the order in which they are written: what pods depend on before the pods. The Secret
of the admin token is created and never read, because the permission to list Secrets would reveal all Secrets
of a cluster."""
OPTIONAL: tuple[Kind, ...] = (INFERENCE_POOL,)
"""Kinds of children of a MambaDeployment that a cluster may lack. They are not watched, because a watch fails
if its kind does not exist; each pass over an object that needs one reads it."""
WATCHED: tuple[Kind, ...] = (*OWNED, POD)
"""Kinds of children and pods whose events wake their owner."""
BY_NAME: dict[str, Kind] = {
    kind.kind: kind
    for kind in (
        *OWNED, *OPTIONAL, HTTP_ROUTE, SECRET, *OWNERS, EVENT, LEASE, ENDPOINT_SLICE, SUBJECT_ACCESS_REVIEW,
    )
}  # fmt: skip
