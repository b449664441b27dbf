"""Settings that an engine applies while it serves. Every other change needs a new process."""

LIVE = {
    "strategy": "strategy",
    "track_interval": "trackInterval",
    "max_checkpoints_per_path": "maxCheckpointsPerPath",
    "eviction": "eviction",
}
"""Names in the body of `PUT /admin/strategy` and in `spec.stateCache`, by name in the settings document."""
ADAPTERS = "lora"
"""Name in the settings document of the adapters, which engines load and unload while they serve."""
