"""The external metrics API (external.metrics.k8s.io/v1beta1), for autoscalers that are not ours."""
