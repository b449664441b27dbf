"""The cluster as a pass observes it, and the memory of an object between two passes."""
