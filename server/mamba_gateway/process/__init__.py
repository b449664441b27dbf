"""The gateway's process: its parts put together, the source of its endpoints, start and drain."""
