"""The Kubernetes client that operator and gateway share: access to a cluster, one request, its errors."""
