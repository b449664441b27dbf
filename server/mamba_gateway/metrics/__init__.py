"""The gateway's metrics."""
