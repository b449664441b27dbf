"""Kubernetes objects as the operator reads, writes and judges them: kinds, manifests, the client, pods."""
