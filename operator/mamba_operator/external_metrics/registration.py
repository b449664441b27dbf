"""Registration of the external metrics API: serving certificate, `caBundle` of its APIService, EndpointSlice.

Only the operator that holds the lease has metrics, so it writes its own address into the EndpointSlice of a
Service without selector. Failures are logged and retried; nothing here ends the operator.
"""

import asyncio
import base64
import ipaddress
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.external_metrics import front_proxy, server
from mamba_operator.external_metrics.access_review import AccessReview
from mamba_operator.external_metrics.certificate import (
    ServingCertificate,
    load_certificate,
    serving_certificate,
)
from mamba_operator.external_metrics.documents import GROUP, VERSION
from mamba_operator.external_metrics.front_proxy import FrontProxy, NoFrontProxy
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError
from mamba_operator.objects.kinds import API_SERVICE, CONFIG_MAP, ENDPOINT_SLICE
from mamba_operator.process.settings import OperatorSettings

log = structlog.get_logger(__name__)
API_SERVICE_NAME = f"{VERSION}.{GROUP}"


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """Address of the API and the lifetimes of its registration; times are seconds."""

    namespace: str
    service: str
    """Name of the Service that the APIService names, and of its EndpointSlice."""
    host: str
    port: int
    """Port of our server; 0 takes a free one."""
    address: str | None
    """IP address of our pod; None = the Service's endpoints are managed elsewhere."""
    valid_for: float = 7 * 86400.0
    """Validity of a certificate, which is rotated after half of it."""
    check_interval: float = 60.0
    """Time between two checks of the API server's front-proxy certificates and of our registration."""
    overlap: float = 15.0
    """Time for which both authorities are trusted before the new certificate is used."""


def registration_settings(settings: OperatorSettings, host: str, namespace: str) -> RegistrationSettings:
    """Return the settings of an operator in `namespace` that listens on `host`; POD_IP is its address."""
    return RegistrationSettings(
        namespace=namespace,
        service=settings.external_metrics_service,
        host=host,
        port=settings.external_metrics_port or 0,
        address=os.environ.get("POD_IP") or None,
    )


class Registration:
    """Serves and registers the external metrics API. One instance per active operator."""

    def __init__(
        self,
        client: KubeClient,
        metrics: ScalingMetrics,
        settings: RegistrationSettings,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client, self._metrics, self._settings, self._wall = client, metrics, settings, wall
        self._port = settings.port
        self._certificate = self._new_certificate()
        self._ca_bundle = self._certificate.authority
        self._last_error = ""

    async def run(self) -> None:
        """Serve and register until cancelled; failures are retried.

        Raises:
            OSError: the port cannot be bound.
        """
        while True:
            try:
                await self._serve(await self._front_proxy())
            except (ClusterError, NoFrontProxy) as error:
                self._log_once(error)
                await asyncio.sleep(self._settings.check_interval / 10)

    async def _front_proxy(self) -> FrontProxy:
        return front_proxy.front_proxy(
            await self._client.get(CONFIG_MAP, front_proxy.NAMESPACE, front_proxy.NAME)
        )

    async def _serve(self, proxy: FrontProxy) -> None:
        """Serve until the front-proxy certificates of the API server change."""
        settings, context = self._settings, proxy.context()
        load_certificate(context, self._certificate)
        api = server.ExternalMetrics(self._metrics, AccessReview(self._client), proxy, wall=self._wall)
        async with server.serving(api.app(), settings.host, self._port, context) as self._port:
            log.info("external_metrics_served", address=f"{settings.host}:{self._port}")
            while True:
                try:
                    await self._register()
                    if self._wall() > self._certificate.until - timedelta(seconds=settings.valid_for / 2):
                        await self._rotate(context)
                    if await self._front_proxy() != proxy:
                        return
                    self._last_error = ""
                except (ClusterError, NoFrontProxy) as error:
                    self._log_once(error)
                await asyncio.sleep(settings.check_interval)

    async def _rotate(self, context: ssl.SSLContext) -> None:
        """Trust the new authority, use the new certificate, then drop the old authority."""
        new = self._new_certificate()
        self._ca_bundle = self._certificate.authority + new.authority
        await self._register()
        await asyncio.sleep(self._settings.overlap)
        load_certificate(context, new)
        self._certificate = new
        await asyncio.sleep(self._settings.overlap)
        self._ca_bundle = new.authority
        await self._register()
        log.info("certificate_rotated", until=new.until.isoformat(timespec="seconds"))

    async def _register(self) -> None:
        settings = self._settings
        if settings.address is not None:
            await self._client.apply(
                endpoint_slice(settings.namespace, settings.service, settings.address, self._port)
            )
        bundle = base64.b64encode(self._ca_bundle).decode()
        await self._client.merge(API_SERVICE, None, API_SERVICE_NAME, {"spec": {"caBundle": bundle}})

    def _new_certificate(self) -> ServingCertificate:
        settings = self._settings
        name = f"{settings.service}.{settings.namespace}.svc"
        return serving_certificate(name, self._wall(), timedelta(seconds=settings.valid_for))

    def _log_once(self, error: Exception) -> None:
        # The same message every few seconds would only fill the log.
        if str(error) != self._last_error:
            self._last_error = str(error)
            log.warning("external_metrics_not_registered", error=str(error))


def endpoint_slice(namespace: str, service: str, address: str, port: int) -> dict[str, object]:
    """Return the EndpointSlice with the only endpoint of a Service without selector."""
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "mambaserve-operator",
            },
        },
        "addressType": f"IPv{ipaddress.ip_address(address).version}",
        "ports": [{"name": "external-metrics", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
