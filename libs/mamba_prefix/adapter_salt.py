"""The salt of prefixes that were computed with an adapter, which no request without the adapter can have.

Engines use it for the roots of their trees, for hashes of pages and for stored and transferred states, and
gateways to look prefixes up. A state that one adapter computed is therefore never found for another one.
"""

import re

_ADAPTED = re.compile(r"lora:[0-9a-f]{32}:")


def adapted_salt(fingerprint: str, salt: str) -> str:
    """Return the salt of a request whose adapter has `fingerprint`; "" = the request has no adapter."""
    return f"lora:{fingerprint}:{salt}" if fingerprint else salt


def with_other_salt(own: str, salt: str) -> str:
    """Return the salt with `salt` in place of the client's part of `own`, and with the same adapter."""
    adapter = _ADAPTED.match(own)
    return f"{adapter[0]}{salt}" if adapter is not None else salt


def is_adapted(salt: str) -> bool:
    """Return whether a text could be the salt of an adapter, which clients must not choose for themselves."""
    return _ADAPTED.match(salt) is not None
