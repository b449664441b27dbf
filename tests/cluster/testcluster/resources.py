"""Where the API server keeps each kind: what kubectl finds out each time that it starts, kept.

Called by `Cluster.get` and `Cluster.list`, which tests ask many times a second while they wait.
"""

from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlencode

from testcluster.api import ApiClient
from testcluster.errors import ClusterError

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""One answer with all resources of all groups."""


@dataclass(frozen=True)
class Resource:
    """One kind as the server serves it."""

    root: str
    """`/api/v1` or `/apis/GROUP/VERSION`."""
    plural: str
    namespaced: bool

    def path(self, namespace: str | None = None, name: str = "", selector: str = "") -> str:
        """Return the path of one object, or of all objects in a namespace or everywhere."""
        within = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        return f"{self.root}{within}/{self.plural}{f'/{name}' if name else ''}{query}"


class Resources:
    """The kinds of one API server, by every name that kubectl takes for them."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[str, Resource] = {}

    def find(self, name: str) -> Resource:
        """Return the kind called `name`: plural, singular, short name, Kind, each also as NAME.GROUP.

        Raises ClusterError when the server has none, OSError when it is away.
        """
        lowered = name.lower()
        if lowered not in self._known:
            # Those of a CRD come and go; asked again only for what is not known.
            self._known = {**self._read("/apis"), **self._read("/api")}
        if lowered not in self._known:
            raise ClusterError(f"the server has no resource {name!r}")
        return self._known[lowered]

    def _read(self, path: str) -> dict[str, Resource]:
        status, answer = self._api.request("GET", path, accept=AGGREGATED)
        if status != HTTPStatus.OK:
            raise ClusterError(f"GET {path}: {status} {answer}")
        kinds: dict[str, Resource] = {}
        for group in answer["items"]:
            group_name = group["metadata"].get("name", "")
            # The preferred version comes first.
            for version in group.get("versions", []):
                root = f"{path}/{group_name}/{version['version']}" if group_name else f"{path}/v1"
                for each in version.get("resources", []):
                    plural = each["resource"]
                    resource = Resource(root, plural, each.get("scope") == "Namespaced")
                    names = (plural, each.get("singularResource"), *each.get("shortNames", []))
                    kind = each.get("responseKind", {}).get("kind", "")
                    for called in {*names, kind} - {"", None}:
                        kinds.setdefault(called.lower(), resource)
                        kinds.setdefault(f"{called}.{group_name}".lower(), resource)
        return kinds
