"""The link to the engine process: its client, its process, its state."""
