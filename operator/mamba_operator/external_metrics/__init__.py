"""The external metrics API (external.metrics.k8s.io/v1beta1), for external autoscalers."""
