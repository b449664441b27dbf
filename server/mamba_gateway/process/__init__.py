"""The gateway's process: creates its parts, learns which engines exist, starts and shuts down."""
