"""The cluster as one pass observes it: the snapshot, the nodes and their GPUs."""
