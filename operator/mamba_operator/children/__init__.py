"""The objects that a MambaDeployment owns: comparison, drift, secrets, roll-out."""
