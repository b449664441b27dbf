"""The Kubernetes client that operator and gateway share: the way into a cluster, one request, its errors."""
