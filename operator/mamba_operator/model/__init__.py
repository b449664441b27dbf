"""The model of a MambaDeployment: its download, and the volume that keeps it."""
