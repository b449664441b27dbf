"""Authentication of clients: only the API server has access, and names the user in headers.

The ConfigMap `extension-apiserver-authentication` of kube-system, which each cluster with an aggregation
layer has, names the authority of the API server's certificate and the headers.
"""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from multidict import CIMultiDictProxy

from mamba_operator.objects.manifest import Manifest

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"


class NoFrontProxy(ValueError):
    """The cluster does not publish how its API server authenticates; the message names the missing part."""


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user as the API server authenticated it."""

    user: str
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Tells requests of the API server from others, by the data that the cluster publishes for that."""

    authority: str
    """PEM of the authority of the API server's client certificate."""
    names: frozenset[str]
    """Common names that the certificate may have; empty = any."""
    user_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server that only the API server may use. Raises NoFrontProxy."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=self.authority)
        except ssl.SSLError as error:
            raise NoFrontProxy(f"requestheader-client-ca-file is no certificate: {error}") from error
        return context

    def user_info(
        self, certificate: Mapping[str, Any] | None, headers: CIMultiDictProxy[str]
    ) -> UserInfo | None:
        """Return the user for whom the API server asks.

        The result is None if the client has no certificate, or one of another name than the API server's, or
        if the headers name no user.

        Args:
            certificate: the peer's certificate, as `ssl.SSLSocket.getpeercert` returns it.
            headers: headers of the request.
        """
        common = {
            value
            for part in (certificate or {}).get("subject", ())
            for name, value in part
            if name == "commonName"
        }
        if not certificate or (self.names and not common & self.names):
            return None
        user = next((headers[name] for name in self.user_headers if headers.get(name)), None)
        if user is None:
            return None
        groups = tuple(group for name in self.group_headers for group in headers.getall(name, ()))
        extra: dict[str, list[str]] = {}
        for name, value in headers.items():
            for prefix in self.extra_prefixes:
                if name.lower().startswith(prefix.lower()):
                    extra.setdefault(unquote(name[len(prefix) :].lower()), []).append(value)
        return UserInfo(user, groups, tuple((name, tuple(values)) for name, values in sorted(extra.items())))


def front_proxy(config_map: Manifest | None) -> FrontProxy:
    """Return the authentication data in the ConfigMap. Raises NoFrontProxy."""
    data = (config_map or {}).get("data") or {}
    authority = data.get("requestheader-client-ca-file")
    if not authority:
        raise NoFrontProxy(
            f"ConfigMap {NAMESPACE}/{NAME} has no requestheader-client-ca-file: the API server runs without "
            "an aggregation layer"
        )

    def listed(name: str) -> tuple[str, ...]:
        try:
            return tuple(map(str, json.loads(data.get(f"requestheader-{name}") or "[]")))
        except (ValueError, TypeError) as error:
            raise NoFrontProxy(f"ConfigMap {NAMESPACE}/{NAME}, requestheader-{name}: {error}") from error

    return FrontProxy(
        str(authority), frozenset(listed("allowed-names")), listed("username-headers"),
        listed("group-headers"), listed("extra-headers-prefix"),
    )  # fmt: skip
