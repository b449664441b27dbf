"""The cluster as a pass observes it."""
