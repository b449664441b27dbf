"""`GatewayGuard`: lets gateways alone ask for what tells of other clients' prompts.

Used by the route of the prefix feed, whose hashes of pages anybody could hold guesses against.
"""

from fastapi.security import HTTPAuthorizationCredentials
from starlette.requests import HTTPConnection

from mamba_api.names import GATEWAY_KEY
from mamba_edge.api_keys import KeyFile
from mamba_edge.app.application import KeyGuard
from mamba_edge.exchange.request_context import context_of
from mamba_server.api.requests.errors import Forbidden


class GatewayGuard(KeyGuard):
    """The security scheme of routes for gateways: the key named `gateway`, or the only one that there is.
    Without a key file it lets everybody pass."""

    def __init__(self, keys: KeyFile | None, description: str) -> None:
        super().__init__(keys, description)
        self._accepted = keys

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Raises Unauthorized or Forbidden."""
        passed = await super().__call__(request)
        name = context_of(request.scope).key_name
        if self._accepted is not None and name != GATEWAY_KEY and self._accepted.names != {name}:
            raise Forbidden(
                f"this is for gateways, and needs the key named {GATEWAY_KEY!r}: a line 'KEY {GATEWAY_KEY}' "
                "of --api-key-file"
            )
        return passed
