"""Autoscalers that are compared: the product's own decision, and the published rules of others."""
