"""Whose request it is: the name by which clients take turns at an engine.

A gateway tells the engine with a header, since its own key is all that the engine sees.
"""

import re
from typing import Any

from mamba_api.names import GATEWAY_KEY

CLIENT_HEADER = b"x-mambaserve-client"
"""From a gateway to an engine: the name of the client's key."""
SCOPE_KEY = "key_name"
"""In the scope of a request: the name of the key that it was let in with."""
_NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def client_of(scope: Any) -> str:
    """The client's name, "" = nobody knows. An engine without keys believes the header of everybody, one with
    keys that of the gateway's key alone."""
    key: str | None = scope.get(SCOPE_KEY)
    if key is not None and key != GATEWAY_KEY:
        return key
    for name, value in scope["headers"]:
        if name == CLIENT_HEADER and _NAME.fullmatch(value):
            return str(value.decode())
    return key or ""
