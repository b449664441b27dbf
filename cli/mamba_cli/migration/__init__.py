"""Reads how another server would be started, and writes the MambaDeployment that does the same."""
