"""The cluster as one pass observes it: a frozen snapshot, its nodes and GPUs."""
