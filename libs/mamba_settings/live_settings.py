"""Settings that an engine takes over while it serves. Every other change needs a new process."""

LIVE = {
    "strategy": "strategy",
    "track_interval": "trackInterval",
    "max_checkpoints_per_path": "maxCheckpointsPerPath",
    "eviction": "eviction",
}
"""What the body of `PUT /admin/strategy`, and `spec.stateCache`, call them; by their names in the settings
document."""
