"""Pure decisions about a MambaGateway: one address for the models of several MambaDeployments."""
