"""The notes of a gateway for the operator: texts in the ConfigMap X-wake, all that a gateway may write."""

from mamba_api import names
from mamba_kube.api_server import MERGE_PATCH, ApiServer


class OperatorNote:
    """The note about one MambaDeployment."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self._server = server
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{names.Children(name).wake}"

    async def write(self, key: str, text: str | None) -> None:
        """Write `text` under `key`; None removes it. Raises ApiError, OSError, TimeoutError."""
        await self._server.request(
            "PATCH",
            self._path,
            query={"fieldManager": "mambaserve-gateway"},
            body={"data": {key: text}},
            content_type=MERGE_PATCH,
        )
