"""A KubeClient whose API server is one function of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from mamba_kube.access import ClusterAccess, connected
from mamba_operator.objects.client import KubeClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client(handler: Handler, *, timeout: float = 5.0) -> AsyncIterator[KubeClient]:
    async def route(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", route)
    async with TestServer(app) as server:
        address = str(server.make_url("")).rstrip("/")
        access = ClusterAccess(Configuration(host=address), "default")
        async with connected(access, timeout=timeout) as api:
            yield KubeClient(api)
