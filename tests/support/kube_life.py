"""One MambaDeployment on a real API server and the operator that sees to it, whose passes a test runs itself.

No kubelet runs pods; the test writes their status as one does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mamba_api import names
from mamba_kube.api_server import JSON, MERGE_PATCH, ApiServer
from mamba_operator.admin_key import AdminKey
from mamba_operator.engine_admin import Put, put_strategy
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import OperatorError
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, metadata
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import Reconciler
from operator_objects import nano_config

PASSES = 200
"""Most passes until one has nothing to do; they wait a moment for the cluster's controllers."""
ADMIN_KEY = AdminKey(bytes(range(32)))
FITS = {
    "model": {"uri": "pvc://models/nano", "config": nano_config()}, "memory": {"deviceMemory": "80Gi"},
}  # fmt: skip
LONG_AGO = "2026-01-02T11:00:00Z"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}


class WatchedServer(ApiServer):
    """Notes what is written; all reaches the real one."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.written: list[str] = []
        """Method and path of each write."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """As the real one."""
        if method != "GET":
            self.written.append(f"{method} {path}")
        return await self._server.request(
            method, path, query=query, body=body, content_type=content_type, accept=accept
        )


class Life:
    """The object, and the operator whose passes are run by `until`."""

    def __init__(self, server: ApiServer, key: Key, *, put: Put = put_strategy) -> None:
        self.key, self._put = key, put
        self._server, self.kube = server, KubeClient(server)
        self._watched = WatchedServer(server)
        self.restart()

    def restart(self) -> None:
        """Another operator, which knows nothing yet."""
        kube = KubeClient(self._watched)
        self._operator = Reconciler(kube, OperatorMetrics(), identity="test", key=ADMIN_KEY, put=self._put)

    def children_written(self) -> list[str]:
        """What the operator wrote to anything but the object itself."""
        return [one for one in self._watched.written if f"/{names.PLURAL}/" not in one]

    async def make(self, **spec: Any) -> None:
        made = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": {**FITS, **spec}}
        named = {"name": self.key.name, "namespace": self.key.namespace}
        await self.kube.create({**made, "metadata": named})

    async def owner(self) -> Manifest:
        return await self.kube.get(MAMBA_DEPLOYMENT, self.key.namespace, self.key.name) or {}

    async def change(self, **spec: Any) -> None:
        await self.kube.merge(MAMBA_DEPLOYMENT, self.key.namespace, self.key.name, {"spec": spec})

    async def calm(self) -> bool:
        """Whether one pass fails in nothing and writes nothing."""
        before = len(self._watched.written)
        try:
            await self._operator(self.key)
        except OperatorError:
            return False
        return len(self._watched.written) == before

    async def until(self, done: Callable[[], Awaitable[Any]]) -> Any:
        """Pass after pass, until one is calm and `done` is true after it."""
        for number in range(PASSES):
            if await self.calm() and (found := await done()):
                return found
            await asyncio.sleep(0.0 if number < 4 else 0.2)
        raise AssertionError(f"{self.key} does not come to rest: {(await self.owner()).get('status')}")

    async def pods(self, component: names.Component) -> list[Manifest]:
        selector = ",".join(
            f"{key}={value}" for key, value in names.selector(self.key.name, component).items()
        )
        return await self.kube.list(POD, self.key.namespace, selector=selector)

    async def says(self, pod: Manifest, **status: Any) -> None:
        """What a kubelet writes."""
        path = POD.path(self.key.namespace, metadata(pod)["name"], "status")
        await self._server.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)

    async def ready(self, component: names.Component) -> None:
        """The pods of the component answer."""
        for pod in await self.until(lambda: self.pods(component)):
            await self.says(pod, phase="Running", conditions=[READY])

    async def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        conditions = ((await self.owner()).get("status") or {}).get("conditions") or ()
        found = {one["type"]: one for one in conditions}.get(kind) or {}
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    async def becomes(self, kind: str, reason: str) -> str:
        """The message of the condition once it has the reason."""

        async def so() -> str:
            _, now, message = await self.condition(kind)
            return message if now == reason else ""

        return str(await self.until(so))
