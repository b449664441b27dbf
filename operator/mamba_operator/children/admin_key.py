"""The key from which the tokens of the engines' admin ports are made.

The operator may make Secrets and read none of a deployment. So it keeps one key in a Secret of its own, and a
token is a function of the key and the deployment's uid: made once, known for ever, without being read.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass

import structlog

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict, Forbidden
from mamba_operator.objects.kinds import SECRET
from mamba_operator.objects.manifest import Manifest, metadata

log = structlog.get_logger(__name__)
KEY_BYTES = 32
DATA_KEY = "key"


@dataclass(frozen=True, slots=True)
class AdminKey:
    """The operator's own key. Its text is never logged."""

    secret: bytes

    @property
    def id(self) -> str:
        """Which key: part of the names of the Secrets made with it, so that another key is another Secret."""
        return hashlib.sha256(b"id " + self.secret).hexdigest()[:6]

    def token(self, uid: str) -> str:
        """The token of the deployment with that uid."""
        return hmac.new(self.secret, f"admin token {uid}".encode(), hashlib.sha256).hexdigest()


async def admin_key(client: KubeClient, namespace: str, name: str) -> AdminKey | None:
    """The key in the Secret `name`, which is made where there is none; None: it may not be read.

    Raises:
        ClusterError: the API server gave no answer.
    """
    try:
        found = await client.get(SECRET, namespace, name)
        if found is None:
            try:
                found = await client.create(_secret(namespace, name))
            except Conflict:
                found = await client.get(SECRET, namespace, name)
    except Forbidden:
        log.warning(
            "admin_key_not_readable",
            secret=f"{namespace}/{name}",
            advice="let the operator get and create it; without it a change of strategy replaces the engines",
        )
        return None
    key = _key(found or {})
    if key is None:
        raise ClusterError(f"Secret {namespace}/{name} has no usable {DATA_KEY}: delete it, it is made again")
    return AdminKey(key)


def made_with_key(engine: Manifest) -> bool:
    """Tell whether pods of an engine Deployment mount a token that was made from a key."""
    meta = metadata(engine)
    uid = next((str(one.get("uid")) for one in meta.get("ownerReferences") or ()), "")
    without = names.Children((meta.get("labels") or {}).get(names.LABEL_INSTANCE, "")).admin_secret(uid)
    try:
        volumes = engine["spec"]["template"]["spec"]["volumes"]
        secrets_of = [str((one.get("secret") or {}).get("secretName")) for one in volumes]
    except (KeyError, TypeError, AttributeError):
        return False
    return any(name.startswith(f"{without}-") for name in secrets_of)


def _secret(namespace: str, name: str) -> Manifest:
    value = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: "operator"},
        },
        "type": "Opaque",
        "data": {DATA_KEY: value},
    }


def _key(secret: Manifest) -> bytes | None:
    data = secret.get("data")
    try:
        raw = base64.b64decode(str((data or {}).get(DATA_KEY, "")), validate=True)
    except (binascii.Error, ValueError, AttributeError):
        return None
    return raw if len(raw) >= KEY_BYTES else None
