"""What every HTTP server of the platform does alike: keys, limits, identifiers, errors, listeners, docs."""
