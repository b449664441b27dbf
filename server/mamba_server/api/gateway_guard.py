"""`GatewayGuard`: restricts what reveals other clients' prompts to gateways.

The route of the prefix feed uses it: with the feed's page hashes, a client could test guesses of prompts.
"""

from fastapi.security import HTTPAuthorizationCredentials
from starlette.requests import HTTPConnection

from mamba_api.names import GATEWAY_KEY
from mamba_edge.api_keys import KeyFile, KeyGuard
from mamba_edge.client_name import SCOPE_KEY
from mamba_server.api.requests.errors import Forbidden


class GatewayGuard(KeyGuard):
    """Guard of routes for gateways: requires the key named `gateway`, or the only key of the key file.

    Without a key file, every call passes.
    """

    def __init__(self, keys: KeyFile | None, description: str) -> None:
        super().__init__(keys, description)
        self._accepted = keys

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Check the key. Raises Unauthorized or Forbidden."""
        passed = await super().__call__(request)
        name = request.scope.get(SCOPE_KEY)
        if self._accepted is not None and name != GATEWAY_KEY and self._accepted.names != {name}:
            raise Forbidden(
                f"this path is for gateways and needs the key named {GATEWAY_KEY!r}: send the KEY of a line "
                f"'KEY {GATEWAY_KEY}' in --api-key-file"
            )
        return passed
