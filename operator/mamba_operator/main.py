"""The operator process: connects, acquires the lease, watches, reconciles, answers probes, ends cleanly.

`mambaserve operator` calls `run`. This module wires the parts together and decides nothing about objects.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

import structlog

from mamba_api import names
from mamba_api.names import authority
from mamba_api.v1alpha1.profiles import Profiles
from mamba_kube.access import connected, load_access, pod_namespace
from mamba_kube.errors import NoClusterAccess
from mamba_operator.autoscale.autoscaler import Autoscaler
from mamba_operator.autoscale.metrics_reader import MetricsReader
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.canary.watch import CanaryWatch
from mamba_operator.children.admin_key import AdminKey, admin_key, has_derived_token
from mamba_operator.children.engine_admin import EngineAccess, get_plan
from mamba_operator.gateway_reconcile import GatewayReconciler
from mamba_operator.memory.poller import ReportedPlanPoller
from mamba_operator.model.download_poller import DownloadPoller
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Forbidden, PassHangs, SettingsInvalid
from mamba_operator.objects.indices import Indices, owner_key
from mamba_operator.objects.kinds import (
    BY_NAME,
    DEPLOYMENT,
    MAMBA_DEPLOYMENT,
    MAMBA_GATEWAY,
    OWNERS,
    WATCHED,
    Kind,
)
from mamba_operator.objects.manifest import Key, Manifest, metadata
from mamba_operator.observation.snapshot import ShippedConfig, Sources, nothing_shipped
from mamba_operator.process.freshness import Freshness
from mamba_operator.process.leadership import Leadership, LeaseName
from mamba_operator.process.liveness import LoopLag, liveness_server
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.process.namespace_claims import NamespaceClaims
from mamba_operator.process.served_namespaces import ServedNamespaces
from mamba_operator.process.settings import OperatorSettings
from mamba_operator.process.watching import make_registry, run_watches
from mamba_operator.process.workqueue import WorkQueue
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from mamba_operator.render.context import ChildDefaults, DefaultImages, operator_pods
from mamba_operator.rollout.watch import RolloutWatch
from mamba_operator.workload.watch import WorkloadWatch
from mamba_planner.cards.shipped_profiles import SHIPPED

log = structlog.get_logger(__name__)
CRD_POLL_SECONDS = 5.0
"""Seconds between two attempts to find the CRD, and to read the admin key."""
NAMESPACES_POLL_SECONDS = 15.0
"""Seconds between two checks which namespaces may be watched: after some minutes of a forbidden watch kopf
ends all watches."""
KINDS_POLL_SECONDS = 60.0
"""Seconds between two checks whether the cluster serves MambaGateways."""
WATCHES_TIMEOUT_SECONDS = 10.0
"""Longest time for which the first resync waits for the watches to be complete."""
INDICES_POLL_SECONDS = 0.1
JITTER = 0.2
"""Share by which the time between two resyncs is reduced at random."""


class Operator:
    """The process of the operator: it holds the lease, watches the cluster and runs the passes."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: KubeClient,
        shipped: ShippedConfig = nothing_shipped,
        profiles: Profiles = SHIPPED,
    ) -> None:
        self._settings = settings
        self._shipped, self._profiles = shipped, profiles
        self._client = client
        self._host = settings.liveness_host or ("::" if pod_namespace() else "127.0.0.1")
        self._metrics = OperatorMetrics()
        client.counted = lambda method, plural: self._metrics.requests.labels(method, plural).inc()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._metrics.due.set_function(lambda: len(self._queue))
        self._freshness = Freshness(settings.stale_after)
        self._lag = LoopLag()
        self._owners: tuple[Kind, ...] = (MAMBA_DEPLOYMENT,)
        """Kinds of the objects that are reconciled, which the cluster serves."""
        self._withheld: str | None = None
        """Why this process holds the lease and changes nothing; None = it reconciles."""
        self._stopping = asyncio.Event()
        self._end_last: list[asyncio.Task[None]] = []
        """Tasks that end after the lease has been released."""
        self._namespaces = ServedNamespaces(client, settings.namespace, NAMESPACES_POLL_SECONDS)
        self._leadership = Leadership(
            client,
            LeaseName(
                own_namespace(settings),
                settings.lease,
                settings.identity,
                settings.lease_duration,
                settings.renew_every,
            ),
        )

    def stop(self) -> None:
        """Make `run` end soon and cleanly."""
        self._stopping.set()

    def take_signals(self) -> None:
        """Make SIGTERM and SIGINT call `stop`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def run(self) -> None:
        """Run until `stop`.

        Raises:
            LeadershipLost: another operator took over.
            OSError: the liveness port cannot be bound.
        """
        settings = self._settings
        async with (
            liveness_server(
                self._host, settings.liveness_port, checks=self._problems, ready=self._not_ready,
                registry=self._metrics.registry,
            ) as port,
            _background(self._lag.run()),
        ):  # fmt: skip
            log.info("operator_started", identity=settings.identity, liveness=authority(self._host, port))
            leading = asyncio.create_task(self._leadership.hold(self._lead))
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if leading.done():
                    leading.result()
            finally:
                for task in (stopping, leading):
                    task.cancel()
                await asyncio.gather(stopping, leading, return_exceptions=True)
                # Only after the lease is released, because kopf cancels all younger tasks when it ends.
                await self._cancel_end_last()
                log.info("operator_stopped", identity=settings.identity)

    async def _lead(self) -> None:
        """Serve namespaces while this process holds the lease."""
        self._metrics.leader.set(1)
        try:
            await self._crd_served()
            key = await self._admin_key()
            scaling_metrics = ScalingMetrics(self._metrics.registry)
            async with MetricsReader() as pods:
                while await self._serve(await self._namespaces.first(), key, pods, scaling_metrics):
                    await self._cancel_end_last()
        finally:
            self._metrics.leader.set(0)

    async def _serve(
        self,
        served: tuple[str, ...],
        key: AdminKey | None,
        pods: MetricsReader,
        scaling_metrics: ScalingMetrics,
    ) -> bool:
        """Serve the namespaces `served`, or the whole cluster if there are none, until that has to change.

        Return True if other namespaces have to be served, or the CRD of MambaGateways has come or gone, and
        False if another task ended.
        """
        settings, indices = self._settings, Indices()
        autoscaler = Autoscaler(
            indices, pods.read, self._queue.add, scaling_metrics, period=settings.scale_every
        )
        rollouts = RolloutWatch(indices, pods.read, self._queue.add)
        canaries = CanaryWatch(indices, pods.read, self._queue.add)
        downloads = DownloadPoller(indices, pods.read, self._queue.add)
        traffic = WorkloadWatch(indices, pods.read, self._queue.add)
        plans = ReportedPlanPoller(indices, key.token, get_plan, self._queue.add) if key is not None else None
        sources = Sources(
            autoscaler.latest_decisions,
            rollouts.attempts,
            downloads.progress,
            plans.reported_by_role if plans is not None else lambda _: {},
            traffic.measured,
            self._shipped,
            canaries.figures,
        )
        reconciler = self._reconciler(indices, sources, EngineAccess(key, read=pods.read))
        gateways = GatewayReconciler(
            self._client, self._metrics, reconciler.events, indices, self._images, self._pass_settings
        )

        async def reconcile(key: Key) -> float | None:
            return await (gateways if key.kind == MAMBA_GATEWAY.kind else reconciler)(key)

        def mark_stale(key: Key) -> None:
            (gateways if key.kind == MAMBA_GATEWAY.kind else reconciler).mark_stale(key)

        self._owners = await self._owner_kinds()
        registry = make_registry(self._queue.add, self._on_delivered, indices, self._owners)
        watching = asyncio.create_task(run_watches(registry, served, self.take_signals))
        recording = asyncio.create_task(reconciler.events.run())
        self._end_last = [recording, watching]
        release = f"{own_namespace(settings)}/{settings.lease}"
        claims = NamespaceClaims(
            self._client, release, reconcile, reconciler.record_skipped,
            exists=lambda key: bool(indices.of(BY_NAME[key.kind], key)),
        )  # fmt: skip
        coroutines = [
            self._queue.run(claims, settings.workers),
            claims.run(),
            self._resync(served, indices, mark_stale),
            autoscaler.run(),
            rollouts.run(),
            canaries.run(),
            downloads.run(),
            traffic.run(),
        ]
        if plans is not None:
            coroutines.append(plans.run())
        if settings.external_metrics_port is not None:
            coroutines.append(self._external_metrics(scaling_metrics))
        changes = {
            asyncio.create_task(self._namespaces.wait_for_change(served)),
            asyncio.create_task(self._wait_for_kinds()),
        }
        tasks = [*changes, *map(asyncio.create_task, coroutines)]
        try:
            done, _ = await asyncio.wait({recording, watching, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return done <= changes
        finally:
            await _end(tasks, settings.exit_timeout)
            if self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(settings.exit_timeout):
                        await claims.shorten()

    def _reconciler(self, indices: Indices, sources: Sources, engines: EngineAccess) -> Reconciler:
        settings = self._settings
        return Reconciler(
            self._client,
            self._metrics,
            self._pass_settings,
            indices=indices,
            defaults=ChildDefaults(
                self._images,
                settings.scrapers,
                operator_pods(_pods_namespace()),
                self._profiles,
            ),
            engines=engines,
            sources=sources,
            runtime=Runtime(busy=lambda: len(self._queue) > 0, on_listed=self._on_listed),
        )

    @property
    def _pass_settings(self) -> PassSettings:
        settings = self._settings
        return PassSettings(
            settings.identity,
            settings.reconcile_timeout,
            lambda: settings.resync * (1.0 - JITTER * random.random()),
            settings.max_rollouts,
        )

    @property
    def _images(self) -> DefaultImages:
        settings = self._settings
        return DefaultImages(settings.engine_image, settings.gateway_image, settings.image_pull_secret)

    async def _cancel_end_last(self) -> None:
        """Cancel the event recorder, which writes its pending events, and the watches.

        Neither changes a child, so both may still run when the next operator holds the lease.
        """
        for task in self._end_last:
            task.cancel()
            await asyncio.wait({task}, timeout=self._settings.exit_timeout)
        self._end_last = []

    async def _external_metrics(self, scaling_metrics: ScalingMetrics) -> None:
        # Imported only where the server is enabled, because the library for certificates is large.
        from mamba_operator.external_metrics.registration import Registration, registration_settings

        registration = registration_settings(self._settings, self._host, own_namespace(self._settings))
        await Registration(self._client, scaling_metrics, registration).run()

    async def _crd_served(self) -> None:
        """Wait until the cluster serves MambaDeployments: the operator may be installed before the CRD."""
        logged = False
        while True:
            try:
                if await self._client.serves(MAMBA_DEPLOYMENT):
                    return
                if not logged:
                    log.error(
                        "crd_missing",
                        advice="install it with: mambaserve crd | kubectl apply --server-side -f -",
                    )
                    logged = True
            except ClusterError as error:
                log.warning("cluster_unreachable", error=str(error))
            await asyncio.sleep(CRD_POLL_SECONDS)

    async def _owner_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds to reconcile: MambaDeployments, and MambaGateways where the cluster serves them.

        A watch of a kind that does not exist would fail. While the API server gives no answer, MambaGateways
        count as not served.
        """
        try:
            return OWNERS if await self._client.serves(MAMBA_GATEWAY) else (MAMBA_DEPLOYMENT,)
        except ClusterError as error:
            log.warning("cluster_unreachable", error=str(error))
            return (MAMBA_DEPLOYMENT,)

    async def _wait_for_kinds(self) -> None:
        """Return when the cluster serves other kinds than those that are reconciled."""
        while True:
            await asyncio.sleep(KINDS_POLL_SECONDS)
            try:
                if await self._client.serves(MAMBA_GATEWAY) != (MAMBA_GATEWAY in self._owners):
                    return
            except ClusterError as error:
                log.warning("cluster_unreachable", error=str(error))

    async def _admin_key(self) -> AdminKey | None:
        """Wait for the admin key. Return None if it may not be read, and no engine was created with it.

        Without the key, each engine that was created with it would be replaced, and once more when the key is
        readable again.
        """
        while True:
            try:
                key = await admin_key(self._client, own_namespace(self._settings), names.ADMIN_KEY_NAME)
                if key is not None or not await self._engines_have_key():
                    self._withheld = None
                    return key
                self._withheld = (
                    f"the operator may not read its Secret {names.ADMIN_KEY_NAME}, from which tokens of "
                    "engines are derived, and changes nothing: allow the operator to get that Secret"
                )
                log.error("admin_key_withheld", advice=self._withheld)
            except ClusterError as error:
                log.warning("admin_key_missing", error=str(error))
            await asyncio.sleep(CRD_POLL_SECONDS)

    async def _engines_have_key(self) -> bool:
        """Return whether any engine has an admin token that was derived from a key.

        Raises:
            ClusterError: the API server gave no answer.
        """
        selector = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_COMPONENT}=engine"
        for namespace in self._settings.namespace or (None,):
            try:
                listed = await self._client.list(DEPLOYMENT, namespace, selector=selector)
            except Forbidden:
                if namespace is None:
                    raise
                # The operator does not serve this namespace and changes nothing in it.
                continue
            if any(map(has_derived_token, listed)):
                return True
        return False

    async def _resync(
        self, served: tuple[str, ...], indices: Indices, mark_stale: Callable[[Key], None]
    ) -> None:
        """Queue every custom object periodically, and compare the watches with the cluster.

        A resync finds what the watches miss, with one list per kind, however many objects there are. The
        first resync waits until the watches have listed everything, because before that each pass would read
        the cluster.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCHES_TIMEOUT_SECONDS):
                while not indices.complete:  # noqa: ASYNC110 - any of many events may complete the indices
                    await asyncio.sleep(INDICES_POLL_SECONDS)
        while True:
            requested_at = time.monotonic()
            indices.expire_unconfirmed()
            try:
                for namespace in served or (None,):
                    await self._resync_in(namespace, requested_at, indices, mark_stale)
            except ClusterError as error:
                log.warning("resync_failed", error=str(error))
            await asyncio.sleep(self._settings.resync * (1.0 - JITTER * random.random()))

    async def _resync_in(
        self, namespace: str | None, requested_at: float, indices: Indices, mark_stale: Callable[[Key], None]
    ) -> None:
        """Resync the objects of `namespace`; None = of the whole cluster.

        `requested_at` is the time at which the resync began, on the monotonic clock in seconds.
        """
        for kind in (*WATCHED, *self._owners):
            selector = "" if kind in self._owners else f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
            listed = await self._client.list(kind, namespace, selector=selector, metadata_only=True)
            for item in listed:
                self._on_listed(kind, item, requested_at)
                if kind in self._owners and (key := owner_key(kind, item)) is not None:
                    self._queue.add(key)
            if indices.complete:
                # An event that is on its way makes an object differ too; an additional read is cheap.
                for key in indices.differing(kind, listed):
                    if namespace in (None, key.namespace):
                        mark_stale(key)
                        self._queue.add(key)

    def _on_delivered(self, kind: Kind, manifest: Manifest, deleted: bool) -> None:
        self._metrics.events.labels(kind.kind).inc()
        if deleted:
            self._freshness.gone(_identity(kind, manifest))
        else:
            version = str(metadata(manifest).get("resourceVersion", ""))
            self._freshness.delivered(_identity(kind, manifest), version, time.monotonic())

    def _on_listed(self, kind: Kind, manifest: Manifest, requested_at: float) -> None:
        self._freshness.listed(
            _identity(kind, manifest), str(metadata(manifest).get("resourceVersion", "")), requested_at
        )

    def _problems(self) -> list[str]:
        problems = [self._lag.check()]
        if self._leadership.holds:
            stale = self._freshness.stale()
            if stale:
                problems.append(f"a watch is stale: {len(stale)} objects were listed and never delivered")
            if self._queue.oldest_run() > self._settings.reconcile_timeout * 2:
                problems.append("a pass hangs")
        return [problem for problem in problems if problem]

    def _not_ready(self) -> str | None:
        if self._withheld is not None:
            return self._withheld
        return None if self._leadership.informed else "the operator has not read the lease yet"


def _identity(kind: Kind, manifest: Manifest) -> tuple[str, str]:
    meta = metadata(manifest)
    return kind.plural, str(meta.get("uid"))


@contextlib.asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _end(tasks: Sequence[asyncio.Task[None]], timeout: float) -> None:
    """Cancel tasks that may change the cluster, and wait until they have ended.

    Raises:
        PassHangs: a task still runs after `timeout` seconds.
    """
    for task in tasks:
        task.cancel()
    _, hanging = await asyncio.wait(tasks, timeout=timeout)
    if hanging:
        raise PassHangs(f"{len(hanging)} tasks have not ended within {timeout:g} s")


def own_namespace(settings: OperatorSettings) -> str:
    """Return the namespace of the operator and of its lease."""
    return settings.lease_namespace or _pods_namespace() or next(iter(settings.namespace), "default")


def _pods_namespace() -> str | None:
    """Return the namespace of the pod in which this process runs; None outside of a pod."""
    return os.environ.get("POD_NAMESPACE") or pod_namespace()


async def run(
    settings: OperatorSettings, shipped: ShippedConfig = nothing_shipped, profiles: Profiles = SHIPPED
) -> None:
    """Run one operator until SIGTERM or SIGINT.

    Args:
        settings: settings of the process.
        shipped: reads the configurations of models that ship with the engines.
        profiles: profiles that `spec.resources.profile` may name.

    Raises:
        SettingsInvalid: there are no usable credentials.
        LeadershipLost: another operator took over.
        OSError: the liveness port cannot be bound.
    """
    if settings.kubeconfig is not None:
        # kopf reads the path from this variable only, and both clients must use the same kubeconfig.
        os.environ["KUBECONFIG"] = settings.kubeconfig
    # kopf logs every event that it delivers, which adds nothing to the operator's own log.
    logging.getLogger("kopf").setLevel(logging.DEBUG if settings.log_level == "debug" else logging.WARNING)
    try:
        access = await load_access(settings.kubeconfig)
    except NoClusterAccess as error:
        raise SettingsInvalid(str(error)) from error
    async with connected(access, timeout=settings.request_timeout) as server:
        operator = Operator(settings, KubeClient(server), shipped, profiles)
        operator.take_signals()
        await operator.run()
