"""The objects that a MambaDeployment owns: comparison, drift, Secrets, roll-out."""
