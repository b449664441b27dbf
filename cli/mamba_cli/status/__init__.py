"""The state of an endpoint and its engines, or of the MambaDeployments of a cluster."""
