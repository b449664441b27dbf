"""Parts that every HTTP server of the platform shares: keys, limits, identifiers, errors, listeners, docs."""
