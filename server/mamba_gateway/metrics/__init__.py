"""The Prometheus series of a gateway."""
