"""Kubernetes objects as the operator reads, writes and evaluates them: kinds, manifests, the client, pods."""
