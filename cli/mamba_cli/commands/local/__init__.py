"""Commands of deployments on this machine."""
