"""`AdminKey`: the key from which the tokens of the engines' admin ports are derived.

Read by `main` when the operator becomes active. The operator may create the Secrets of a deployment but not
read them. It keeps one key in a Secret of its own and derives each token from the key and the deployment's
uid, so it can compute a token again without reading it.
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
    """The key from which the operator derives the admin token of each deployment; never logged."""

    secret: bytes

    @property
    def id(self) -> str:
        """Id of the key. It is part of the names of derived Secrets, so each key has Secrets of its own."""
        return hashlib.sha256(b"id " + self.secret).hexdigest()[:6]

    def token(self, uid: str) -> str:
        """Return the token of the deployment whose uid is `uid`."""
        return hmac.new(self.secret, f"admin token {uid}".encode(), hashlib.sha256).hexdigest()


async def admin_key(client: KubeClient, namespace: str, name: str) -> AdminKey | None:
    """Return the key in the Secret `name`, which is created if it is missing; None if it may not be read.

    Raises:
        ClusterError: the API server gave no answer, or the Secret holds no usable key.
    """
    try:
        secret = await client.get(SECRET, namespace, name)
        if secret is None:
            try:
                secret = await client.create(_secret(namespace, name))
            except Conflict:
                secret = await client.get(SECRET, namespace, name)
    except Forbidden:
        log.warning(
            "admin_key_not_readable",
            secret=f"{namespace}/{name}",
            advice="allow the operator to get and create it; otherwise a change of strategy replaces engines",
        )
        return None
    key = _key(secret or {})
    if key is None:
        raise ClusterError(
            f"Secret {namespace}/{name} has no usable {DATA_KEY}: delete the Secret, and the operator "
            "creates it again"
        )
    return AdminKey(key)


def has_derived_token(engine: Manifest) -> bool:
    """Return whether the pods of an engine Deployment mount a token that was derived from a key."""
    meta = metadata(engine)
    uid = next((str(owner.get("uid")) for owner in meta.get("ownerReferences") or ()), "")
    random_token = names.Children((meta.get("labels") or {}).get(names.LABEL_INSTANCE, "")).admin_secret(uid)
    try:
        volumes = engine["spec"]["template"]["spec"]["volumes"]
        mounted = [str((volume.get("secret") or {}).get("secretName")) for volume in volumes]
    except (KeyError, TypeError, AttributeError):
        return False
    # The Secret of a derived token has the id of the key behind the name that a random token's has.
    return any(name.startswith(f"{random_token}-") for name in mounted)


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
