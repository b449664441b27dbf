"""The control plane: observe the cluster, plan the children of each MambaDeployment, apply them."""
