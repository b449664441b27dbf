"""The model of a MambaDeployment: its download, and the copies of it that are in use."""
