"""The gateway's process: its parts put together, where its endpoints come from, the warm-up."""
