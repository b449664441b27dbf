"""Sources from which the gateway learns which prefixes its engines have cached: Redis, or the engines."""
