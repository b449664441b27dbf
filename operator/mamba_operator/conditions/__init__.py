"""Conditions, reasons and the rest of a MambaDeployment's status."""
