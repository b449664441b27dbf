"""The reconciliation of a MambaGateway: one address for the models of several MambaDeployments."""
