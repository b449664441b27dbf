"""Local mode and the offline planner: a MambaDeployment on this machine, without a cluster."""
