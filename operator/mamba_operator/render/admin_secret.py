"""The Secret with the token of the engines' admin port: made once, then left alone. Pure."""

from mamba_api import names
from mamba_operator.kinds import SECRET
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def admin_secret(context: Context, token: str) -> Manifest:
    """`token` is fresh randomness of the caller; it must not be empty."""
    name = context.children.admin_secret
    return {
        **child(context, SECRET, name, "engine"),
        "type": "Opaque",
        "stringData": {names.ADMIN_TOKEN_KEY: token},
    }
